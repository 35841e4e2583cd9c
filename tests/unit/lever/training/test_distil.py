from __future__ import annotations

import math

import pytest
import torch
from builders import example
from small_selectors import N_KINDS, groups_of_kinds, selector, table_of_kinds
from torch import Tensor

from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.records import Example
from lever_pipe.base.torch_streams import torch_generator
from lever_pipe.experiment.distil import Distil
from lever_pipe.lever.selector.embeddings import EmbeddingTable
from lever_pipe.lever.selector.network import PointerSelector
from lever_pipe.lever.training import distil
from lever_pipe.lever.training.distil import distil_epoch, distil_step, oracle_targets
from lever_pipe.lever.training.groups import Groups
from lever_pipe.lever.training.loop import Step, Updates

N_EXAMPLES, K = 32, 8


def examples() -> list[Example]:
    """Return examples of four kinds; a query of one kind has the answer of the demonstrations of the next kind."""
    found = []
    for number in range(N_EXAMPLES):
        kind = number % N_KINDS
        answers = (f"kind {(kind + 1) % N_KINDS}",) * 10
        found.append(example(number, answer=f"kind {kind}", answers=answers, question_type="any"))
    return found


def test_the_target_is_uniform_on_the_best_of_the_pool() -> None:
    targets = oracle_targets(examples(), groups_of_kinds(16, N_EXAMPLES))
    assert targets.dtype == torch.float32
    batch = groups_of_kinds(16, N_EXAMPLES)
    for query, pool, target in zip(batch.queries.tolist(), batch.pools.tolist(), targets.tolist(), strict=True):
        assert target == [0.5 if candidate % N_KINDS == (query + 1) % N_KINDS else 0.0 for candidate in pool]


def test_a_query_without_a_good_candidate_has_no_target_and_does_not_count() -> None:
    train = examples()
    train[5] = example(5, answer="kind 1", answers=("nobody says this",) * 10, question_type="any")
    targets = oracle_targets(train, groups_of_kinds(16, N_EXAMPLES))
    assert targets.sum(dim=1).tolist() == [float(query != 5) for query in range(16)]
    module, batch = selector(width=16), groups_of_kinds(16, N_EXAMPLES)
    step = distil_step(module, table_of_kinds(N_EXAMPLES), batch, targets_BK=targets)
    others = torch.tensor([query for query in range(16) if query != 5])
    without = distil_step(module, table_of_kinds(N_EXAMPLES), batch.take(others), targets_BK=targets[others])
    assert float(step.loss.detach()) == pytest.approx(float(without.loss.detach()), rel=1e-6)
    assert step.values["gradient_share"] == 15 / 16
    assert step.values["agreement"] == pytest.approx(without.values["agreement"])


def test_every_pass_shows_every_query_once_with_its_own_target(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, seen = groups_of_kinds(16, N_EXAMPLES), []
    targets = oracle_targets(examples(), batch)
    module = selector(width=16)

    def noted(module: PointerSelector, table: EmbeddingTable, part: Groups, *, targets_BK: Tensor) -> Step:
        seen.append(part.queries.tolist())
        assert torch.equal(targets_BK, targets[part.queries])
        return distil_step(module, table, part, targets_BK=targets_BK)

    monkeypatch.setattr(distil, "distil_step", noted)
    updates = Updates(module, AdamW(module, learning_rate=0.0, weight_decay=0.0), max_gradient_norm=1.0)
    distil_epoch(
        updates, table_of_kinds(N_EXAMPLES), batch, targets, Distil(batch_queries=6, passes=3), torch_generator(0)
    )
    assert [len(part) for part in seen] == [6, 6, 4] * 3
    orders = [[query for part in seen[start : start + 3] for query in part] for start in (0, 3, 6)]
    assert [sorted(order) for order in orders] == [list(range(16))] * 3
    assert orders[0] != orders[1] != orders[2]


@pytest.mark.parametrize("head", ["static", "gru"])
def test_it_learns_what_the_oracle_would_choose(head: str) -> None:
    module, batch = selector(width=16, head=head), groups_of_kinds(16, N_EXAMPLES)
    targets = oracle_targets(examples(), batch)
    adam = AdamW(module, learning_rate=2e-2, weight_decay=0.0)
    values = []
    for epoch in range(8):
        order = torch_generator(epoch)
        updates = Updates(module, adam, max_gradient_norm=1.0)
        distil_epoch(updates, table_of_kinds(N_EXAMPLES), batch, targets, Distil(batch_queries=4, passes=2), order)
        values.append(updates.means())
    # A quarter of each pool is right; the untrained policy prefers the query's own kind, which is wrong.
    assert values[0]["loss"] > math.log(K / 2)
    assert values[-1]["agreement"] == 1.0
    # Two candidates are equal: ln 2 is the floor, and ln 8 the loss of a uniform policy.
    assert math.log(2) - 1e-6 < values[-1]["loss"] < (math.log(2) + math.log(8)) / 2


def test_dropout_is_on_while_it_learns() -> None:
    module = selector(width=16, dropout=0.5)
    targets = oracle_targets(examples(), groups_of_kinds(16, N_EXAMPLES))
    losses = set()
    for seed in range(2):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            losses.add(
                float(
                    distil_step(
                        module, table_of_kinds(N_EXAMPLES), groups_of_kinds(16, N_EXAMPLES), targets_BK=targets
                    ).loss.detach()
                )
            )
    assert len(losses) == 2
