"""How much an offline epoch computes: counters, since seconds belong to machines."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from small_selectors import selector as small
from small_selectors import table as seen
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.seeding import torch_generator
from lever_pipe.experiment.config import Grpo
from lever_pipe.lever.selector.embeddings import EmbeddingTable, FrozenSelector
from lever_pipe.lever.selector.network import PointerSelector
from lever_pipe.lever.training.groups import BATCH, Groups
from lever_pipe.lever.training.grpo import grpo_epoch
from lever_pipe.lever.training.loop import Step, Updates

N_EXAMPLES, N_QUERIES, K = 30, 11, 7
PROJECTIONS = ("input_proj", "input_up", "input_down", "cand_proj")


class Operators(TorchDispatchMode):
    """Counts the library's operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def selector(seed: int, *, frozen: bool) -> PointerSelector:
    module = small(seed, heads=2, dropout=0.5, attention_dropout=0.5, temperature=0.1, feed_forward=12)
    if frozen:
        module.freeze_projections()
    return module


def table() -> EmbeddingTable:
    return seen(N_EXAMPLES)


def groups() -> Groups:
    draw = torch_generator(2)
    return Groups(
        queries=torch.arange(N_QUERIES),
        pools=torch.rand(N_QUERIES, N_EXAMPLES, generator=draw).argsort(dim=-1)[:, :K],
        selections=torch.rand(N_QUERIES, 4, K, generator=draw).argsort(dim=-1)[..., :3],
        rewards=torch.rand(N_QUERIES, 4, generator=draw),
        valid=torch.ones(N_QUERIES, 4, dtype=torch.bool),
    )


def epoch(
    policy: PointerSelector,
    *,
    batch: int = 2,
    max_gradient_norm: float = 1.0,
    reference: PointerSelector | None = None,
) -> dict[str, float]:
    """Train one epoch and return what it logs."""
    frozen = FrozenSelector(reference or selector(0, frozen=False), table())
    adam = AdamW(policy, learning_rate=1e-3, weight_decay=0.0)
    updates, kept = Updates(policy, adam, max_gradient_norm=max_gradient_norm), (groups(), groups().rewards - 0.5)
    settings = Grpo(batch_queries=batch, clip_epsilon=0.2)
    grpo_epoch(updates, frozen, table(), kept, kl_beta=0.1, settings=settings, generator=torch_generator(3))
    return updates.means()


def rows_through(module: PointerSelector, names: tuple[str, ...]) -> Counter[str]:
    rows: Counter[str] = Counter()
    for name in names:

        def count(_: nn.Module, inputs: tuple[Tensor], name: str = name) -> None:
            rows[name] += inputs[0][..., 0].numel()

        getattr(module, name).register_forward_pre_hook(count)
    return rows


@pytest.mark.parametrize("batch", [1, 2, N_QUERIES])
def test_an_epoch_asks_its_reference_once(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, scores = [], FrozenSelector.scores

    def noted(self: FrozenSelector, part: Groups, **how: bool) -> Tensor:
        asked.append(len(part))
        return scores(self, part, **how)

    monkeypatch.setattr(FrozenSelector, "scores", noted)
    epoch(selector(3, frozen=False), batch=batch)
    assert asked == [N_QUERIES]
    assert N_QUERIES < BATCH


def test_frozen_projections_see_each_example_once_an_epoch() -> None:
    policy = selector(3, frozen=True)
    rows = rows_through(policy, PROJECTIONS)
    epoch(policy)
    assert rows == dict.fromkeys(PROJECTIONS, N_EXAMPLES + 1)  # one row tells that nothing trains it


@pytest.mark.parametrize("name", PROJECTIONS)
def test_a_selector_that_does_not_change_projects_each_example_of_a_table_once(name: str) -> None:
    module, batch = selector(0, frozen=False), groups()
    rows = rows_through(module, (name,))
    frozen = FrozenSelector(module, table())
    for _ in range(3):
        frozen.scores(batch)
    assert rows[name] == N_EXAMPLES
    rows.clear()
    table().encoded(module, batch)
    assert rows[name] == len(torch.cat([batch.queries, batch.pools.flatten()]).unique())


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

    class Unmoved(Updates[PointerSelector]):
        def take(self, step: Step, n_queries: int) -> None:
            seen.append(step.values)

    unmoved = Unmoved(policy, AdamW(policy, learning_rate=1.0, weight_decay=0.0), max_gradient_norm=1.0)
    anchor = FrozenSelector(selector(0, frozen=False), table())
    kept, settings = (groups(), groups().rewards - 0.5), Grpo(batch_queries=batch)
    grpo_epoch(unmoved, anchor, table(), kept, kl_beta=0.1, settings=settings, generator=torch_generator(3))
    assert len(seen) == -(-N_QUERIES // batch)
    for values in seen:
        assert (values["kl"], values["kl_exact"], values["mean_ratio"], values["clip_fraction"]) == (0, 0, 1, 0)


def test_a_step_takes_one_softmax() -> None:
    with Operators() as operators:
        epoch(selector(3, frozen=True), batch=2)
    assert operators.calls["_log_softmax"] == -(-N_QUERIES // 2) + 1  # the reference's
