"""Selections with an end action: their probabilities, and that rewards teach the position of the end."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lever_pipe.base.shapes import ShapeError
from lever_pipe.base.torch_streams import torch_generator
from lever_pipe.losses.on_policy import on_policy_terms
from lever_pipe.losses.sequence import (
    MASKED_SCORE,
    EndedSelections,
    ended_selections,
    net_rewards,
    step_log_probs,
)

STOP, K, S = 3, 3, 3
"""Three candidates and the end."""
Ending = Callable[[Tensor, Tensor, int], EndedSelections]


def test_by_hand() -> None:
    selections = torch.tensor([[[0, 2, 1], [2, 3, 3]], [[1, 0, 2], [0, 3, 1]], [[2, 0, 3], [1, 2, 0]]])
    lengths, taken = ended_selections(selections, torch.tensor([3, 2, 1]), STOP)
    assert lengths.tolist() == [[3, 1], [2, 1], [1, 1]]
    assert taken.int().tolist() == [
        [[1, 1, 1], [1, 1, 0]],  # one and its end: two draws
        [[1, 1, 0], [1, 1, 0]],  # the bound ends the first without a draw, its own draw the second
        [[1, 0, 0], [1, 0, 0]],
    ]
    rewards = torch.tensor([[1.0, 0.0], [0.5, 0.25], [1.0, 1.0]])
    # 1 - 3/4, 0 - 1/4; 1/2 - 2/4, 1/4 - 1/4; 1 - 1/4 twice
    assert net_rewards(rewards, lengths, price=0.25).tolist() == [[0.25, -0.25], [0.0, 0.0], [0.75, 0.75]]


selections_of_rows = st.lists(st.lists(st.integers(0, 4), min_size=4, max_size=4), min_size=1, max_size=5)


@given(rows=selections_of_rows, most=st.integers(0, 4), padding=st.integers(0, 4))
def test_what_stands_after_an_end_counts_for_nothing(rows: list[list[int]], most: int, padding: int) -> None:
    found = ended_selections(torch.tensor([rows]), torch.tensor([most]), 4)
    for row, length, taken in zip(rows, found.lengths[0].tolist(), found.taken[0].tolist(), strict=True):
        before = row.index(4) if 4 in row else 4
        assert length == min(before, most)
        assert taken == [step < most and step <= before for step in range(4)]
    padded = torch.tensor([rows]).masked_fill(~found.taken, padding)
    again = ended_selections(padded, torch.tensor([most]), 4)
    assert torch.equal(again.taken, found.taken)
    assert torch.equal(again.lengths, found.lengths)


@given(
    rewards=st.lists(st.floats(-5, 5), min_size=2, max_size=6),
    prices=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    shots=st.integers(0, 4),
)
def test_a_price_is_paid_for_each_one(rewards: list[float], prices: tuple[float, float], shots: int) -> None:
    given_, lengths = torch.tensor([rewards], dtype=torch.float64), torch.full((1, len(rewards)), shots)
    assert torch.equal(net_rewards(given_, lengths, price=0.0), given_)
    twice = net_rewards(net_rewards(given_, lengths, price=prices[0]), lengths, price=prices[1])
    torch.testing.assert_close(twice, net_rewards(given_, lengths, price=sum(prices)), atol=1e-12, rtol=0)
    # equal lengths cost the same: each group's baseline stays the same
    paid = net_rewards(given_, lengths, price=prices[0])
    torch.testing.assert_close(paid - paid.mean(), given_ - given_.mean(), atol=1e-12, rtol=0)


# A policy over three candidates whose logits differ at every prefix, enumerated


def logits_at(weights: Tensor, prefix: tuple[int, ...]) -> Tensor:
    """Return logits of three candidates and the end, of a policy linear in its weights."""
    features = torch.randn(K + 1, len(weights), generator=torch_generator(7, *prefix), dtype=torch.float64)
    logits = features @ weights
    return logits if prefix else torch.cat([logits[:K], logits.new_tensor([MASKED_SCORE])])


def worth(chosen: tuple[int, ...]) -> float:
    return float(torch.rand((), generator=torch_generator(8, *chosen)))


def value(weights: Tensor, most: int, price: float, prefix: tuple[int, ...] = ()) -> Tensor:
    """Return the expected net reward from a prefix on, outcome by outcome."""
    if len(prefix) == most:
        return torch.tensor(worth(prefix) - price * most, dtype=torch.float64)
    left = [k for k in (*range(K), STOP) if k not in prefix and (prefix or k != STOP)]
    shares = logits_at(weights, prefix)[left].softmax(dim=0)
    total = torch.zeros((), dtype=torch.float64)
    for k, share in zip(left, shares, strict=True):
        ended = torch.tensor(worth(prefix) - price * len(prefix), dtype=torch.float64)
        total = total + share * (ended if k == STOP else value(weights, most, price, (*prefix, k)))
    return total


def enumerated(weights: Tensor, most: int, ending: Ending) -> tuple[Tensor, Tensor, Tensor]:
    """Return all selections up to a bound, their log-probabilities and their lengths, each `[1, G]` but the first."""
    seen = {}
    for order in itertools.permutations((*range(K), STOP), S):
        end = order.index(STOP) if STOP in order else S
        selected = order[: min(end, most)]
        if selected and (end >= most or order[end] == STOP):
            seen.setdefault((selected, end < most), (*selected, *[STOP] * (S - len(selected))) if end < most else order)
    selections = torch.tensor([list(seen.values())])
    rows = [[logits_at(weights, sampled_before(s, step)) for step in range(S)] for s in selections[0].tolist()]
    logits = torch.stack([torch.stack(row) for row in rows])[None]
    lengths, taken = ending(selections, torch.tensor([most]), STOP)
    steps = step_log_probs(logits, selections)
    return selections, torch.where(taken, steps, torch.zeros((), dtype=torch.float64)).sum(dim=-1), lengths


def sampled_before(selection: list[int], step: int) -> tuple[int, ...]:
    return tuple(pick for pick in selection[:step] if pick != STOP)


WEIGHTS = torch.tensor([0.3, -0.7, 0.5], dtype=torch.float64)


def law_holds(ending: Ending, most: int, price: float = 0.2) -> bool:
    """Whether probabilities add up to 1, and expectation and gradient equal the recursion's."""
    weights = WEIGHTS.clone().requires_grad_()
    selections, log_probs, lengths = enumerated(weights, most, ending)
    rewards = torch.tensor(
        [[worth(tuple(s[:n])) for s, n in zip(selections[0].tolist(), lengths[0].tolist(), strict=True)]],
        dtype=torch.float64,
    )
    net, chances = net_rewards(rewards, lengths, price=price), log_probs.exp()
    if abs(float(chances.detach().sum()) - 1) > 1e-9:
        return False
    expected = value(weights, most, price)
    (wanted,) = torch.autograd.grad(expected, weights)
    # the loss of draws, weighted by their probabilities: its gradient is the negated one of the expectation
    share = chances.detach() * chances.numel()
    terms = on_policy_terms(
        log_probs_BG=log_probs,
        behaviour_log_probs_BG=log_probs.detach(),
        advantages_BG=net * share,
        divergences_BG=torch.zeros_like(net),
        valid_BG=torch.ones_like(net, dtype=torch.bool),
        clip_epsilon=0.2,
        kl_beta=0.0,
    )
    (found,) = torch.autograd.grad(-terms.total, weights)
    same = torch.allclose((chances * net).sum(), expected, atol=1e-9, rtol=0)
    return same and torch.allclose(found, wanted, atol=1e-9, rtol=0)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_law_expectation_and_gradient_are_those_of_the_recursion(most: int) -> None:
    assert law_holds(ended_selections, most)


def without_the_end(selections: Tensor, most: Tensor, stop: int) -> EndedSelections:
    lengths, taken = ended_selections(selections, most, stop)
    return EndedSelections(lengths, taken & (selections != stop))


def with_a_draw_at_the_bound(selections: Tensor, most: Tensor, stop: int) -> EndedSelections:
    return ended_selections(selections, most + 1, stop)


def with_padding(selections: Tensor, most: Tensor, stop: int) -> EndedSelections:
    lengths, taken = ended_selections(selections, most, stop)
    return EndedSelections(lengths, torch.ones_like(taken))


def one_longer(selections: Tensor, most: Tensor, stop: int) -> EndedSelections:
    lengths, taken = ended_selections(selections, most, stop)
    return EndedSelections((lengths + 1).clamp(max=int(most)), taken)


@pytest.mark.parametrize("mutant", [without_the_end, with_a_draw_at_the_bound, with_padding, one_longer])
def test_mutants_break_the_law(mutant: Ending) -> None:
    assert not law_holds(mutant, 2)


def test_wrong_shapes_and_prices_are_refused() -> None:
    with pytest.raises(ShapeError, match="most_B"):
        ended_selections(torch.zeros(2, 1, 3, dtype=torch.long), torch.ones(3), 4)
    with pytest.raises(ShapeError, match="lengths_BG"):
        net_rewards(torch.zeros(2, 3), torch.zeros(2, 2), price=0.1)
    with pytest.raises(ValueError, match="price"):
        net_rewards(torch.zeros(2, 3), torch.zeros(2, 3), price=-0.1)
