"""How much an offline epoch computes: counters, since seconds belong to machines."""

from __future__ import annotations

import pytest
import small_selectors
import torch

from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.torch_streams import torch_generator
from lever_pipe.experiment.grpo import Grpo
from lever_pipe.lever.selector.embeddings import EmbeddingTable, FrozenSelector
from lever_pipe.lever.selector.network import PointerSelector
from lever_pipe.lever.training.groups import Groups
from lever_pipe.lever.training.grpo import grpo_epoch
from lever_pipe.lever.training.loop import Step, Updates

N_EXAMPLES, N_QUERIES, K = 30, 11, 7


def selector(seed: int, *, frozen: bool) -> PointerSelector:
    module = small_selectors.selector(
        seed, heads=2, dropout=0.5, attention_dropout=0.5, temperature=0.1, feed_forward=12
    )
    if frozen:
        module.freeze_projections()
    return module


def table() -> EmbeddingTable:
    return small_selectors.table(N_EXAMPLES)


def groups() -> Groups:
    return small_selectors.groups(N_QUERIES, size=K, n_examples=N_EXAMPLES)


def epoch(
    policy: PointerSelector,
    *,
    batch: int = 2,
) -> dict[str, float]:
    """Train one epoch and return what it logs."""
    frozen = FrozenSelector(selector(0, frozen=False), table())
    adam = AdamW(policy, learning_rate=1e-3, weight_decay=0.0)
    updates, selected = Updates(policy, adam, max_gradient_norm=1.0), (groups(), groups().rewards - 0.5)
    settings = Grpo(batch_queries=batch, clip_epsilon=0.2)
    grpo_epoch(updates, frozen, table(), selected, kl_beta=0.1, settings=settings, generator=torch_generator(3))
    return updates.means()


@pytest.mark.parametrize("batch", [1, 5])
def test_known_projections_move_no_bit(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    once, again = selector(3, frozen=True), selector(3, frozen=True)
    values = epoch(once, batch=batch)
    plain = EmbeddingTable.projected_by
    monkeypatch.setattr(EmbeddingTable, "projected_by", lambda self, m: self if m is again else plain(self, m))
    assert epoch(again, batch=batch) == values
    assert all(torch.equal(one, other) for one, other in zip(once.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("batch", [1, 2, 3, 5])
def test_the_ratio_is_1_before_the_first_update_whatever_the_batch(batch: int) -> None:
    policy, seen = selector(0, frozen=True), list[dict[str, float]]()

    class Unmoved(Updates):
        def take(self, step: Step, n_queries: int) -> None:
            seen.append(step.values)

    unmoved = Unmoved(policy, AdamW(policy, learning_rate=1.0, weight_decay=0.0), max_gradient_norm=1.0)
    anchor = FrozenSelector(selector(0, frozen=False), table())
    selected, settings = (groups(), groups().rewards - 0.5), Grpo(batch_queries=batch)
    grpo_epoch(unmoved, anchor, table(), selected, kl_beta=0.1, settings=settings, generator=torch_generator(3))
    assert len(seen) == -(-N_QUERIES // batch)
    for values in seen:
        assert (values["kl"], values["kl_exact"], values["mean_ratio"], values["clip_fraction"]) == (0, 0, 1, 0)
