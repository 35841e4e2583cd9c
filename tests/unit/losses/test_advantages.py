from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lever_pipe.base.shapes import ShapeError
from lever_pipe.base.torch_streams import torch_generator
from lever_pipe.losses import advantages as module
from lever_pipe.losses import reduction
from lever_pipe.losses.advantages import batch_advantages, centred_advantages, leave_one_out_advantages, top_k_by_reward

# The published constants; a test that is about one of them names another.
published_z_scores = partial(module.published_z_scores, clamp=3.0)
group_advantages = partial(module.group_advantages, std_floor=0.1, clamp=5.0)
advantages = SimpleNamespace(
    published_z_scores=published_z_scores, group_advantages=group_advantages, top_k_by_reward=top_k_by_reward
)

BASELINES = (centred_advantages, leave_one_out_advantages, batch_advantages)


def all_valid(values: Tensor) -> Tensor:
    return torch.ones_like(values, dtype=torch.bool)


def test_z_scores_by_hand() -> None:
    # R = 0, 0, 2, 2: mean 1, unbiased variance 4/3, so z = -+ sqrt(3)/2 (biased: -+ 1).
    rewards = torch.tensor([[0.0, 0.0, 2.0, 2.0]])
    z = advantages.published_z_scores(rewards, all_valid(rewards))
    half_root = math.sqrt(3) / 2
    assert z[0].tolist() == pytest.approx([-half_root, -half_root, half_root, half_root], abs=1e-6)


def test_advantages_by_hand() -> None:
    # Kept z = 1, 0, 0: mean 1/3, unbiased std 1/sqrt(3); A = 2/sqrt(3), -1/sqrt(3) twice.
    z = torch.tensor([[1.0, 0.0, 0.0]])
    found = advantages.group_advantages(z, all_valid(z))
    assert found[0].tolist() == pytest.approx([1.1547005, -0.5773503, -0.5773503], abs=1e-6)


def test_padding_takes_no_part() -> None:
    values = torch.tensor([[0.0, 0.0, 2.0, 2.0, 50.0, -50.0]])
    valid = torch.tensor([[True, True, True, True, False, False]])
    for name in ("published_z_scores", "group_advantages"):
        function = getattr(advantages, name)
        padded = function(values, valid)
        alone = function(values[:, :4], valid[:, :4])
        assert torch.equal(padded[:, :4], alone)
        assert padded[0, 4:].tolist() == [0.0, 0.0]


def test_ties_give_no_signal() -> None:
    # The mean of twelve equal floats is off by a rounding; a z-score of it would be of size one.
    rewards = torch.full((1, 12), 1.6)
    assert advantages.published_z_scores(rewards, all_valid(rewards)).equal(rewards)
    assert advantages.group_advantages(rewards, all_valid(rewards)).abs().max().item() == 0.0
    thirds = torch.full((1, 3), 0.1)
    assert advantages.group_advantages(thirds, all_valid(thirds)).abs().max().item() == 0.0


def biased(values: Tensor, valid: Tensor) -> Tensor:
    counts = valid.sum(1)
    means = torch.where(valid, values, 0.0).sum(1) / counts
    squares = torch.where(valid, (values - means[:, None]) ** 2, 0.0)
    return (squares.sum(1) / counts).sqrt()


def everything_valid(values: Tensor, valid: Tensor) -> Tensor:
    return values.mean(dim=1)


def always_spread(values: Tensor, valid: Tensor) -> Tensor:
    return torch.ones(values.shape[0], dtype=torch.bool)


WRONG: list[tuple[object, str, object]] = [
    (reduction, "group_standard_deviations", biased),
    (reduction, "group_means", everything_valid),
    (reduction, "group_has_spread", always_spread),
    (advantages, "published_z_scores", lambda *args: -published_z_scores(*args)),
    (advantages, "group_advantages", lambda *args: -group_advantages(*args)),
]


def slow_pipeline(rewards: list[float], k: int) -> dict[int, float]:
    """Published steps for one query, with `statistics` only: position -> advantage."""
    mean, std = statistics.mean(rewards), statistics.stdev(rewards)
    z = [max(-3.0, min(3.0, (r - mean) / std)) if std > 1e-12 else r for r in rewards]
    selected = sorted(range(len(z)), key=lambda i: -z[i])[:k]
    chosen = [z[i] for i in selected]
    centre = statistics.mean(chosen)
    divisor = max(statistics.stdev(chosen), 0.1)
    return {i: max(-5.0, min(5.0, (z[i] - centre) / divisor)) for i in selected}


def test_agrees_with_the_slow_pipeline() -> None:
    levels = torch.tensor([0.0, 1.6, 2.0], dtype=torch.float64)
    rewards = levels[torch.randint(3, (20, 9), generator=torch_generator(0, "levels"))]
    valid = all_valid(rewards)
    z = published_z_scores(rewards, valid)
    selected = top_k_by_reward(z, valid, 5)
    fast = group_advantages(z.gather(1, selected.indices), selected.valid)
    for b in range(20):
        slow = slow_pipeline(rewards[b].tolist(), 5)
        assert selected.indices[b].tolist() == list(slow)
        assert fast[b].tolist() == pytest.approx(list(slow.values()), abs=1e-9)


def test_z_scores_are_clamped_and_groups_of_one_keep_their_reward() -> None:
    # 19 zeros and a one: mean .05, unbiased std sqrt(.05), z of the one = .95/.2236 = 4.2 -> 3
    rewards = torch.zeros(1, 20)
    rewards[0, 0] = 1.0
    assert published_z_scores(rewards, all_valid(rewards))[0, 0].item() == 3.0
    assert published_z_scores(rewards, all_valid(rewards), clamp=9.0)[0, 0].item() == pytest.approx(
        0.95 / math.sqrt(0.05),
        abs=1e-5,  # float32
    )
    one = torch.tensor([[7.0]])
    assert published_z_scores(one, all_valid(one)).tolist() == [[7.0]]
    assert group_advantages(one, all_valid(one)).tolist() == [[0.0]]


def test_the_floor_keeps_nearly_equal_rewards_small() -> None:
    # z = 0 and .02: centred -+ .01, std .0141 below the floor .1, so A = -+ .1 and not -+ .707
    z = torch.tensor([[0.0, 0.02]])
    assert group_advantages(z, all_valid(z))[0].tolist() == pytest.approx([-0.1, 0.1], abs=1e-6)
    floorless = group_advantages(z, all_valid(z), std_floor=0.0)
    assert floorless[0].tolist() == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)], abs=1e-5)


def test_advantages_are_clamped() -> None:
    z = torch.zeros(1, 40)
    z[0, 3] = 1.0  # A = (39/40) / sqrt(1/40) = 6.17 before the clamp
    assert group_advantages(z, all_valid(z)).max().item() == 5.0


def test_top_k_keeps_the_stored_order_of_ties_and_puts_padding_last() -> None:
    z = torch.tensor([[1.0, 2.0, 1.0, 2.0, 9.0], [0.0, 5.0, 9.0, 9.0, 9.0]])
    valid = torch.tensor([[True, True, True, True, False], [True, True, False, False, False]])
    selected = top_k_by_reward(z, valid, 3)
    assert selected.indices[0].tolist() == [1, 3, 0]
    assert selected.indices[1, :2].tolist() == [1, 0]
    assert selected.valid.tolist() == [[True, True, True], [True, True, False]]
    assert top_k_by_reward(z, valid, 99).indices.shape == (2, 5)
    below = top_k_by_reward(torch.tensor([[0.0, -1.0, 9.0, -2.0]]), torch.tensor([[False, True, False, True]]), 2)
    assert (below.indices.tolist(), below.valid.tolist()) == ([[1, 3]], [[True, True]])  # negative ones precede it too
    with pytest.raises(ValueError):
        top_k_by_reward(z, valid, 0)


@pytest.mark.parametrize("function", [published_z_scores, group_advantages, *BASELINES])
def test_an_empty_group_gives_zeros_and_wrong_shapes_an_error(function: object) -> None:
    empty = torch.tensor([[math.nan, math.inf]])
    assert function(empty, torch.zeros(1, 2).bool()).tolist() == [[0.0, 0.0]]  # type: ignore[operator]
    with pytest.raises(ShapeError, match="valid"):
        function(torch.zeros(2, 3), torch.ones(2, 4).bool())  # type: ignore[operator]


# Three queries of 3, 1 and 2 draws; the values at padding must not matter.
REWARDS = torch.tensor([[0.0, 1.0, 5.0], [8.0, math.nan, math.inf], [2.0, 4.0, -math.inf]], dtype=torch.float64)
VALID = torch.tensor([[True, True, True], [True, False, False], [True, True, False]])


BY_HAND = (
    # Means 2, 8, 3.
    (centred_advantages, [[-2.0, -1.0, 3.0], [0.0, 0.0, 0.0], [-1.0, 1.0, 0.0]]),
    # Query 1: 0 - (1 + 5)/2, 1 - (0 + 5)/2, 5 - (0 + 1)/2; query 2 has no other draw; query 3: 2 - 4, 4 - 2.
    (leave_one_out_advantages, [[-3.0, -1.5, 4.5], [0.0, 0.0, 0.0], [-2.0, 2.0, 0.0]]),
    # Sums 6, 8, 6 of 3, 1, 2 draws. Baselines: 14/3, 12/5, 14/4.
    (batch_advantages, [[-14 / 3, -11 / 3, 1 / 3], [5.6, 0.0, 0.0], [-1.5, 0.5, 0.0]]),
)


def test_baselines_by_hand() -> None:
    for function, wanted in BY_HAND:
        found = getattr(module, function.__name__)(REWARDS, VALID).flatten().tolist()
        assert found == pytest.approx([x for row in wanted for x in row], abs=1e-12)


def test_a_query_without_others_is_held_against_nothing() -> None:
    assert module.batch_advantages(REWARDS[:1], VALID[:1]).tolist() == REWARDS[:1].tolist()
    tied = torch.full((1, 3), 0.1)
    assert torch.equal(module.batch_advantages(tied, all_valid(tied)), tied)
    padded = torch.cat([tied, torch.full((1, 3), math.nan)])
    rows = torch.tensor([[True] * 3, [False] * 3])
    assert torch.equal(module.batch_advantages(padded, rows)[:1], tied)


def unmasked_mean(values: Tensor, valid: Tensor) -> Tensor:
    return values.nan_to_num(0.0, 0.0, 0.0).mean(dim=1)


def mean_of_all_queries(rewards: Tensor, valid: Tensor) -> Tensor:
    return torch.where(valid, rewards - rewards[valid].mean(), 0.0)


WRONG += [
    (module, "group_means", unmasked_mean),
    (module, "leave_one_out_advantages", centred_advantages),
    (module, "batch_advantages", mean_of_all_queries),
    (module, "batch_advantages", centred_advantages),
]


def slow_baseline(name: str, rewards: list[list[float]], b: int, i: int) -> float:
    """The baseline of reward i of query b, from lists of the valid rewards."""
    own = rewards[b]
    others = [r for q, row in enumerate(rewards) for r in row if q != b]
    match name:
        case "centred_advantages":
            return statistics.fmean(own)
        case "leave_one_out_advantages":
            return statistics.fmean(own[:i] + own[i + 1 :]) if len(own) > 1 else own[0]
    return statistics.fmean(others) if others else 0.0


@st.composite
def ragged_rewards(draw: st.DrawFn) -> list[list[float]]:
    reward = st.sampled_from([0.0, 0.1, 0.6, 1.0, 1.6]) | st.floats(-5, 5)
    return draw(st.lists(st.lists(reward, max_size=6), min_size=1, max_size=5))


def padded(rewards: list[list[float]]) -> tuple[Tensor, Tensor]:
    width = max(1, *(len(row) for row in rewards), 1)
    values = torch.tensor([row + [math.nan] * (width - len(row)) for row in rewards], dtype=torch.float64)
    return values, ~values.isnan()


@settings(max_examples=100)
@given(rewards=ragged_rewards())
@pytest.mark.parametrize("function", BASELINES)
def test_baselines_agree_with_lists(function: Callable[[Tensor, Tensor], Tensor], rewards: list[list[float]]) -> None:
    values, valid = padded(rewards)
    got = function(values, valid)
    for b, row in enumerate(rewards):
        wanted = [reward - slow_baseline(function.__name__, rewards, b, i) for i, reward in enumerate(row)]
        assert got[b, : len(row)].tolist() == pytest.approx(wanted, abs=1e-12)  # sums of 30 values below 5
        assert not got[b, len(row) :].any()
        if len(set(row)) < 2 and function is not batch_advantages:
            assert not got[b].any()
