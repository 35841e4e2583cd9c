from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from lever_pipe.losses import advantages as module
from lever_pipe.losses.advantages import top_k_by_reward
from lever_pipe.seeding import torch_generator
from lever_pipe.shapes import ShapeError

# The published constants; a test that is about one of them names another.
group_z_scores = partial(module.group_z_scores, clamp=3.0)
group_advantages = partial(module.group_advantages, std_floor=0.1, clamp=5.0)
advantages = SimpleNamespace(
    group_z_scores=group_z_scores, group_advantages=group_advantages, top_k_by_reward=top_k_by_reward
)


def all_valid(values: Tensor) -> Tensor:
    return torch.ones_like(values, dtype=torch.bool)


def check_z_scores_by_hand() -> None:
    # R = 0, 0, 2, 2: mean 1, unbiased variance 4/3, so z = -+ sqrt(3)/2 (biased: -+ 1).
    rewards = torch.tensor([[0.0, 0.0, 2.0, 2.0]])
    z = advantages.group_z_scores(rewards, all_valid(rewards))
    half_root = math.sqrt(3) / 2
    assert z[0].tolist() == pytest.approx([-half_root, -half_root, half_root, half_root], abs=1e-6)


def check_advantages_by_hand() -> None:
    # Kept z = 1, 0, 0: mean 1/3, unbiased std 1/sqrt(3); A = 2/sqrt(3), -1/sqrt(3) twice.
    z = torch.tensor([[1.0, 0.0, 0.0]])
    kept = advantages.group_advantages(z, all_valid(z))
    assert kept[0].tolist() == pytest.approx([1.1547005, -0.5773503, -0.5773503], abs=1e-6)


def check_padding_takes_no_part() -> None:
    values = torch.tensor([[0.0, 0.0, 2.0, 2.0, 50.0, -50.0]])
    valid = torch.tensor([[True, True, True, True, False, False]])
    for name in ("group_z_scores", "group_advantages"):
        function = getattr(advantages, name)
        padded = function(values, valid)
        alone = function(values[:, :4], valid[:, :4])
        assert torch.equal(padded[:, :4], alone)
        assert padded[0, 4:].tolist() == [0.0, 0.0]


def check_ties_give_no_signal() -> None:
    # The mean of twelve equal floats is off by a rounding; a z-score of it would be of size one.
    rewards = torch.full((1, 12), 1.6)
    assert advantages.group_z_scores(rewards, all_valid(rewards)).equal(rewards)
    assert advantages.group_advantages(rewards, all_valid(rewards)).abs().max().item() == 0.0
    thirds = torch.full((1, 3), 0.1)
    assert advantages.group_advantages(thirds, all_valid(thirds)).abs().max().item() == 0.0


CHECKS = (
    check_z_scores_by_hand,
    check_advantages_by_hand,
    check_padding_takes_no_part,
    check_ties_give_no_signal,
)


@pytest.mark.parametrize("check", CHECKS)
def test_advantages_pass_the_checks(check: Callable[[], None]) -> None:
    check()


def biased(values: Tensor, valid: Tensor) -> Tensor:
    counts = valid.sum(1)
    means = torch.where(valid, values, 0.0).sum(1) / counts
    squares = torch.where(valid, (values - means[:, None]) ** 2, 0.0)
    return (squares.sum(1) / counts).sqrt()


def everything_valid(values: Tensor, valid: Tensor) -> Tensor:
    return values.mean(dim=1)


def always_spread(values: Tensor, valid: Tensor) -> Tensor:
    return torch.ones(values.shape[0], dtype=torch.bool)


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("group_standard_deviations", biased),
        ("group_means", everything_valid),
        ("group_has_spread", always_spread),
        ("group_z_scores", lambda *args: -group_z_scores(*args)),
        ("group_advantages", lambda *args: -group_advantages(*args)),
    ],
)
def test_the_checks_reject_broken_advantages(name: str, broken: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advantages if hasattr(advantages, name) else module, name, broken)
    with pytest.raises(AssertionError):
        for check in CHECKS:
            check()


def slow_pipeline(rewards: list[float], k: int) -> dict[int, float]:
    """Published steps for one query, with `statistics` only: position -> advantage."""
    mean, std = statistics.mean(rewards), statistics.stdev(rewards)
    z = [max(-3.0, min(3.0, (r - mean) / std)) if std > 1e-12 else r for r in rewards]
    kept = sorted(range(len(z)), key=lambda i: -z[i])[:k]
    chosen = [z[i] for i in kept]
    centre = statistics.mean(chosen)
    divisor = max(statistics.stdev(chosen), 0.1)
    return {i: max(-5.0, min(5.0, (z[i] - centre) / divisor)) for i in kept}


def test_agrees_with_the_slow_pipeline() -> None:
    levels = torch.tensor([0.0, 1.6, 2.0], dtype=torch.float64)
    rewards = levels[torch.randint(3, (20, 9), generator=torch_generator(0, "levels"))]
    valid = all_valid(rewards)
    z = group_z_scores(rewards, valid)
    kept = top_k_by_reward(z, valid, 5)
    fast = group_advantages(z.gather(1, kept.indices), kept.valid)
    for b in range(20):
        slow = slow_pipeline(rewards[b].tolist(), 5)
        assert kept.indices[b].tolist() == list(slow)
        assert fast[b].tolist() == pytest.approx(list(slow.values()), abs=1e-9)


def test_shifting_and_scaling_the_rewards_changes_no_z_score() -> None:
    rewards = torch.randn(4, 6, generator=torch_generator(0, "shift"), dtype=torch.float64)
    valid = all_valid(rewards)
    moved = group_z_scores(3 * rewards + 7, valid)
    assert torch.allclose(moved, group_z_scores(rewards, valid), atol=1e-12, rtol=0)  # float64


def test_permuting_a_group_permutes_its_advantages() -> None:
    rewards = torch.randn(4, 6, generator=torch_generator(0, "order"), dtype=torch.float64)
    order = torch.tensor([4, 2, 0, 5, 1, 3])
    moved = group_advantages(rewards[:, order], all_valid(rewards))
    plain = group_advantages(rewards, all_valid(rewards))[:, order]
    assert torch.allclose(moved, plain, atol=1e-12, rtol=0)  # sums in another order


def test_mean_advantage_is_zero_and_standard_deviation_one() -> None:
    z = torch.randn(5, 8, generator=torch_generator(0, "moments"), dtype=torch.float64)
    kept = group_advantages(z, all_valid(z))
    assert kept.mean(dim=1).tolist() == pytest.approx([0.0] * 5, abs=1e-12)
    assert kept.std(dim=1).tolist() == pytest.approx([1.0] * 5, abs=1e-12)


def test_z_scores_are_clamped_and_groups_of_one_keep_their_reward() -> None:
    # 19 zeros and a one: mean .05, unbiased std sqrt(.05), z of the one = .95/.2236 = 4.2 -> 3
    rewards = torch.zeros(1, 20)
    rewards[0, 0] = 1.0
    assert group_z_scores(rewards, all_valid(rewards))[0, 0].item() == 3.0
    assert group_z_scores(rewards, all_valid(rewards), clamp=9.0)[0, 0].item() == pytest.approx(
        0.95 / math.sqrt(0.05),
        abs=1e-5,  # float32
    )
    one = torch.tensor([[7.0]])
    assert group_z_scores(one, all_valid(one)).tolist() == [[7.0]]
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
    kept = top_k_by_reward(z, valid, 3)
    assert kept.indices[0].tolist() == [1, 3, 0]
    assert kept.indices[1, :2].tolist() == [1, 0]
    assert kept.valid.tolist() == [[True, True, True], [True, True, False]]
    assert top_k_by_reward(z, valid, 99).indices.shape == (2, 5)
    with pytest.raises(ValueError, match="k must be at least 1"):
        top_k_by_reward(z, valid, 0)


@pytest.mark.parametrize("function", [group_z_scores, group_advantages])
def test_an_empty_group_gives_zeros_and_wrong_shapes_an_error(function: object) -> None:
    empty = torch.tensor([[math.nan, math.inf]])
    assert function(empty, torch.zeros(1, 2).bool()).tolist() == [[0.0, 0.0]]  # type: ignore[operator]
    with pytest.raises(ShapeError, match="valid"):
        function(torch.zeros(2, 3), torch.ones(2, 4).bool())  # type: ignore[operator]
