"""A head that follows the picks, through training and choice, and what it learns that a ranking cannot."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import small_selectors
import torch
from torch import Tensor

from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.torch_streams import torch_generator
from lever_pipe.experiment.rce import Rce
from lever_pipe.lever.selector.decoding import greedy
from lever_pipe.lever.selector.embeddings import EmbeddingTable
from lever_pipe.lever.selector.network import Architecture, PointerSelector, build_selector, initialise
from lever_pipe.lever.training.groups import Groups
from lever_pipe.lever.training.loop import Step, Updates
from lever_pipe.lever.training.supervised import rce_epoch
from lever_pipe.losses.sequence import selection_log_probs


def selector(seed: int = 0, **changed: Any) -> PointerSelector:
    return small_selectors.selector(seed, head="gru", **changed)


def table() -> EmbeddingTable:
    return small_selectors.table(30)


def groups(n: int = 5, shots: int = 3) -> Groups:
    return small_selectors.groups(n, shots=shots, n_examples=30)


def test_selections_of_one_shot_leave_the_head_where_it_is() -> None:
    module = selector()
    adam = AdamW(module, learning_rate=0.01, weight_decay=0.0)

    updates = Updates(module, adam, max_gradient_norm=1.0)

    def take(batch: Groups) -> None:
        loss = -selection_log_probs(table().scores(module, batch), batch.selections).mean()
        updates.take(Step(loss, {}), len(batch))

    before, query = module.decoder_gru.weight_hh.detach().clone(), module.query_proj.weight.detach().clone()
    take(groups(shots=1))
    assert torch.equal(module.decoder_gru.weight_hh, before)
    assert not torch.equal(module.query_proj.weight, query)
    take(groups(shots=2))
    assert not torch.equal(module.decoder_gru.weight_hh, before)


def test_a_missing_gradient_elsewhere_is_still_refused() -> None:
    module = selector()
    updates = Updates(module, AdamW(module, learning_rate=0.01, weight_decay=0.0), max_gradient_norm=1.0)
    with pytest.raises(RuntimeError, match="no gradient"):
        updates.take(Step(module.input_proj.weight.sum(), {}), len(groups()))


# A world in which demonstrations complement each other: a question needs two keys out of four, and its pool has three
# candidates of each of them and one of each of the others. All candidates of a key look the same.

COPIES, KEYS = 3, 4
NEEDED = list(itertools.combinations(range(KEYS), 2))
PAIRS = list(itertools.permutations(range(2 * COPIES + KEYS - 2), 2))


def complementary_world() -> tuple[EmbeddingTable, Groups]:
    """Return all ordered pairs of each question, with reward 1 for those that show both keys."""
    keys = torch.eye(KEYS)
    questions = torch.stack([(keys[a] + keys[b]) / math.sqrt(2) for a, b in NEEDED])
    rows = [[*needed * COPIES, *(k for k in range(KEYS) if k not in needed)] for needed in NEEDED]
    pools = torch.stack([torch.tensor(r)[torch.randperm(8, generator=torch_generator(0, *r))] for r in rows])
    selections = torch.tensor(PAIRS).expand(len(NEEDED), -1, -1)
    displayed = pools[:, None].expand(-1, len(PAIRS), -1).gather(2, selections).sort(dim=-1).values
    rewards = (displayed == torch.tensor(NEEDED)[:, None]).all(dim=-1).float()
    groups = Groups(
        torch.arange(KEYS, KEYS + 6), pools, selections, rewards, torch.ones_like(rewards, dtype=torch.bool)
    )
    return EmbeddingTable(torch.cat([keys, questions])), groups


def expected_reward(scores: Tensor, groups: Groups) -> Tensor:
    return (selection_log_probs(scores, groups.selections).exp() * groups.rewards).sum(dim=1).mean()


BEST_RANKING = COPIES / (2 * COPIES - 1)
"""Upper bound for a static head. Candidates of a key look and score the same. Let each of m candidates of one key
have the share x/m of all weight and each of the other (1-x)/m; weight on further candidates only loses. Then
    P(both keys) = x (1-x) / (1 - x/m) + (1-x) x / (1 - (1-x)/m) = m (2m-1) y / (m (m-1) + y),  y = x (1-x),
which rises with y up to y = 1/4, with the value m / (2m-1)."""


def trained(head: str) -> tuple[float, float]:
    """Return expected reward of drawn pairs and reward of greedy ones after 400 steps of RCE."""
    table, groups = complementary_world()
    architecture = Architecture(KEYS, 16, 1, 1, 0.0, 0.0, 0.1, head=head)
    module = initialise(build_selector(architecture), torch_generator(0))
    adam = AdamW(module, learning_rate=1e-2, weight_decay=0.0)

    # 0.1: e^10 to 1, so that nearly all weight is on the pairs with a reward
    settings = Rce(
        learning_rate=1e-2, batch_queries=len(groups), temperature_start=0.1, temperature_end=0.1, horizon_epochs=1
    ).model_copy(update={"passes": 400})
    updates = Updates(module, adam, max_gradient_norm=1.0)
    rce_epoch(updates, table, groups, settings, 1, torch_generator(0))
    with torch.no_grad():
        expected = float(expected_reward(table.scores(module.eval(), groups), groups))
        picks = greedy(module, module.encode(table.vectors[groups.queries], table.vectors[groups.pools]), 2)
    best = [PAIRS.index((a, b)) for a, b in picks.tolist()]
    return expected, float(groups.rewards.gather(1, torch.tensor(best)[:, None]).mean())


def test_a_head_that_follows_learns_to_complement_where_no_ranking_can() -> None:
    ranked, _ = trained("static")
    assert BEST_RANKING - 0.01 < ranked <= BEST_RANKING + 1e-6  # it learns all that it can
    expected, chosen = trained("gru")
    assert expected > BEST_RANKING + 0.3
    assert chosen == 1.0
