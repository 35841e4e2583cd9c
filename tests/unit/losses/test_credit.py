from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lever_pipe.base.seeding import generator
from lever_pipe.base.shapes import ShapeError
from lever_pipe.losses import credit

real_leave_one_out = credit.leave_one_out_advantages
real = {
    name: getattr(credit, name)
    for name in ("trajectory_score", "turn_credits", "episode_z_scores", "token_advantages", "centred_scores")
}
GAMMA = 0.8
TIE = 1e-6
tenths = st.lists(st.integers(0, 10).map(lambda n: n / 10), min_size=1, max_size=15)


def tensor(*rows: Sequence[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_published_scores() -> None:
    # 1.7; 1.7 / 3 = .56666..; 1 + .8 * .7 + .64 * 0.
    assert credit.trajectory_score([1.0, 0.7, 0.0], "sum", GAMMA) == 1.7
    assert credit.trajectory_score([1.0, 0.7, 0.0], "mean", GAMMA) == 0.5667
    assert credit.trajectory_score([1.0, 0.7, 0.0], "r2g", GAMMA) == 1.56
    assert [credit.trajectory_score([0.7], kind, GAMMA) for kind in ("sum", "mean", "r2g")] == [0.7, 0.7, 0.7]


def test_credits_by_hand() -> None:
    # To go with .8: .4, then 0 + .8 * .4 = .32, then 1 + .8 * .32 = 1.256.
    assert credit.turn_credits([1.0, 0.0, 0.4], "equalized", GAMMA) == [1.0, 1.0, 1.0]
    assert credit.turn_credits([1.0, 0.0, 0.4], "r2g", GAMMA) == pytest.approx([1.256, 0.32, 0.4], abs=1e-12)
    # (1 - e^-1) / (1 - e^-2) = 1 / (1 + e^-1) = .7310586
    assert credit.turn_credits([0.0, 1.0, 0.5], "em", GAMMA) == pytest.approx([0.5, 1.0, 0.8655293], abs=1e-7)


def test_z_by_hand() -> None:
    # Deviations with divisor n - 1: of (0, 2) sqrt 2, of (1, 2, 3) 1.
    wanted = 1 / (math.sqrt(2) + TIE)
    assert credit.episode_z_scores(tensor([0, 2])).tolist() == [pytest.approx([-wanted, wanted], abs=1e-15)]
    assert credit.episode_z_scores(tensor([1, 2, 3])).tolist() == [pytest.approx([-1 / (1 + TIE), 0, 1 / (1 + TIE)])]


def test_centred_scores_and_kl_rewards_by_hand() -> None:
    assert credit.centred_scores(tensor([0, 2], [1, 5])).tolist() == [[-1, 1], [-2, 2]]
    assert credit.centred_scores(tensor([0.7] * 7)).tolist() == [[0.0] * 7]
    # Of 1, 2, 6 the means of the others are 4, 3.5 and 1.5; values nearer to the reference gain.
    assert credit.kl_rewards(tensor([1, 2, 6])).tolist() == [pytest.approx([3, 1.5, -4.5], abs=1e-12)]
    assert credit.kl_rewards(tensor([5])).tolist() == [[0.0]]


def test_kl_rewards_have_the_gradient_of_the_kl_of_whole_episodes() -> None:
    """Two tokens of two words, the second word's chances hanging on the first: all 16 pairs of episodes enumerated."""
    reference = tensor([0.3, -0.4], [0.1, 0.9], [-1.0, 0.2]).log_softmax(-1)
    leaf = tensor([1.0, 0.0], [0.5, -0.5], [0.2, 0.6]).requires_grad_()

    def of_episodes(logits: Tensor) -> Tensor:
        first, *second = logits.log_softmax(-1)
        return torch.stack([first[word] + second[word][then] for word in range(2) for then in range(2)])

    log_p, log_r = of_episodes(leaf), of_episodes(reference)
    (true,) = torch.autograd.grad((log_p.exp() * (log_p - log_r)).sum(), leaf, retain_graph=True)
    total = log_p.new_zeros(())
    for one in range(4):
        for other in range(4):
            pair = torch.tensor([one, other])
            weight = log_p.detach()[pair].sum().exp()
            rewards = credit.kl_rewards((log_p - log_r).detach()[pair][None])[0]
            total = total - weight * (rewards * log_p[pair]).mean()
    (found,) = torch.autograd.grad(total, leaf)
    assert torch.allclose(found, true, atol=1e-12, rtol=0)  # float64 sums of 16 terms
    assert true.abs().min().item() > 0.01


def test_advantages_by_hand() -> None:
    # Turn 0 has two tokens with credit 1, turn 1 one token with credit .5, turn 2 two with none:
    # a = 1 1 - .5 - 0 0, sum 2.5 over 3 tokens; A = 2 a 3 / 2.5 = 2.4 a.
    turn = torch.tensor([[-1, 0, 0, -1, 1, -1, 2, 2]])
    wanted = [0, 2.4, 2.4, 0, 1.2, 0, 0, 0]
    actual = credit.token_advantages(tensor([2])[0], [[1.0, 0.5, 0.0]], turn)
    assert actual.tolist() == [pytest.approx(wanted, abs=1e-12)]


def test_equal_credits_are_plain_grpo() -> None:
    z_B, _, turn_BT = random_episodes()
    equal = [credit.turn_credits([0.1] * 5, "equalized", GAMMA)] * len(z_B)
    assert torch.equal(credit.token_advantages(z_B, equal, turn_BT), z_B[:, None] * (turn_BT >= 0))


def test_an_episode_without_credit_has_no_advantage() -> None:
    turn = torch.tensor([[0, 0, 1], [0, -1, 1]])
    advantages = credit.token_advantages(tensor([-2, 1])[0], [[0.0, 0.0], [0.0, 0.0]], turn)
    assert advantages.tolist() == [[0.0] * 3] * 2


def random_episodes() -> tuple[Tensor, list[list[float]], Tensor]:
    """z, five rewards each, and turns with tool tokens between them, for 6 episodes of 20 positions."""
    draws = generator(0, "credit")
    rewards = [[float(r) / 10 for r in draws.integers(0, 11, 5)] for _ in range(6)]
    turns = torch.from_numpy(draws.integers(-1, 5, (6, 20))).sort(dim=1).values
    return torch.from_numpy(draws.normal(size=6)), rewards, turns


def slow_advantages(z_B: Tensor, credits_B: Sequence[Sequence[float]], turn_BT: Tensor) -> list[list[float]]:
    """The formula, token by token."""
    result = []
    for z, row, turns in zip(z_B.tolist(), credits_B, turn_BT.tolist(), strict=True):
        weights = [row[turn] if turn >= 0 else 0.0 for turn in turns]
        total, n = sum(weights), sum(1 for weight in weights if weight != 0)
        result.append([z * weight * n / total if total else 0.0 for weight in weights])
    return result


def test_slow_oracle() -> None:
    z_B, rewards, turn_BT = random_episodes()
    for kind in ("equalized", "r2g", "em"):
        credits_B = [credit.turn_credits(row, kind, GAMMA) for row in rewards]
        actual = credit.token_advantages(z_B, credits_B, turn_BT)
        wanted = tensor(*slow_advantages(z_B, credits_B, turn_BT))
        assert torch.allclose(actual, wanted, atol=1e-12, rtol=0)  # another order of products


def sample_deviation_of_all(scores_PN: Tensor) -> Tensor:
    return (scores_PN - scores_PN.mean(dim=1, keepdim=True)) / (scores_PN.std(dim=1, correction=0, keepdim=True) + TIE)


def over_all_agent_tokens(z_B: Tensor, credits_B: Any, turn_BT: Tensor) -> Tensor:
    weights = credit._credit_of_each_token(credits_B, turn_BT)
    n_B1 = (turn_BT >= 0).sum(dim=1, keepdim=True)
    return z_B[:, None] * weights * n_B1 / weights.sum(dim=1, keepdim=True).clamp(min=1e-9)


def with_tool_tokens(z_B: Tensor, credits_B: Any, turn_BT: Tensor) -> Tensor:
    return real["token_advantages"](z_B, credits_B, turn_BT.clamp(min=0))


def backwards(rewards: Sequence[float], kind: Any, gamma: float) -> list[float]:
    return list(reversed(real["turn_credits"](list(reversed(rewards)), kind, gamma)))


WRONG: list[tuple[object, str, object]] = [
    (credit, "trajectory_score", lambda r, k, g: real["trajectory_score"](r, "sum" if k == "mean" else k, g)),
    (credit, "trajectory_score", lambda r, k, g: sum(r) / (len(r) if k == "mean" else 1)),
    (credit, "turn_credits", backwards),
    (credit, "turn_credits", lambda r, k, g: real["turn_credits"](r, k, 1.0)),
    (credit, "turn_credits", lambda r, k, g: [c - 0.5 * (k == "em") for c in real["turn_credits"](r, k, g)]),
    (credit, "episode_z_scores", sample_deviation_of_all),
    (credit, "episode_z_scores", lambda scores: real["episode_z_scores"](scores.flatten()[None]).view_as(scores)),
    (credit, "token_advantages", over_all_agent_tokens),
    (credit, "token_advantages", with_tool_tokens),
    (credit, "centred_scores", real["episode_z_scores"]),
    (credit, "leave_one_out_advantages", lambda rewards, valid: -real_leave_one_out(rewards, valid)),
]


@given(tenths, st.randoms(use_true_random=False))
def test_the_order_of_rewards_cannot_break_a_tie_of_sums(rewards: list[float], random: Any) -> None:
    shuffled = random.sample(rewards, len(rewards))
    for kind in ("sum", "mean"):
        first, second = (credit.trajectory_score(r, kind, GAMMA) for r in (rewards, shuffled))
        assert first == second


def test_two_ways_to_one_score_tie_in_spite_of_rounding_errors() -> None:
    # .7 - .2 is not the float .5, and .8 * 1 is not reached by the same operations as .8.
    assert 0.7 - 0.2 != 0.5
    assert credit.trajectory_score([0.7 - 0.2], "sum", GAMMA) == credit.trajectory_score([0.5], "sum", GAMMA)
    # .8^2 .5 = .32 = .8 * .4
    first, second = (credit.trajectory_score(r, "r2g", GAMMA) for r in ([0.0, 0.0, 0.5], [0.0, 0.4, 0.0]))
    assert first == second


def test_an_episode_without_turns_scores_nothing() -> None:
    assert [credit.trajectory_score([], kind, GAMMA) for kind in ("sum", "mean", "r2g")] == [0.0] * 3
    assert [credit.turn_credits([], kind, GAMMA) for kind in ("equalized", "r2g", "em")] == [[]] * 3


@given(st.floats(-1e6, 1e6), st.integers(2, 9))
def test_any_group_of_equal_scores_is_exactly_flat(score: float, n: int) -> None:
    assert credit.episode_z_scores(tensor([score] * n)).tolist() == [[0.0] * n]
    assert credit.groups_without_spread(tensor([score] * n)).tolist() == [True]


def test_a_group_of_one_is_compared_with_zero_as_published() -> None:
    assert credit.episode_z_scores(tensor([1.5], [0.0])).tolist() == [[pytest.approx(1.5 / (1 + TIE))], [0.0]]
    assert credit.groups_without_spread(tensor([1.5], [0.0])).tolist() == [False, False]


@given(st.integers(0, 1000))
def test_the_advantages_of_credited_tokens_average_to_z(seed: int) -> None:
    draws = generator(seed, "mean advantage")
    turn_BT = torch.from_numpy(draws.integers(-1, 4, (3, 12)))
    turn_BT[:, 0] = 0
    z_B = torch.from_numpy(draws.normal(size=3))
    credits_B = [[float(c) for c in draws.uniform(0.1, 1, 4)] for _ in range(3)]
    advantages = credit.token_advantages(z_B, credits_B, turn_BT)
    assert (advantages[turn_BT < 0] == 0).all()
    means = [row[turns >= 0].mean().item() for row, turns in zip(advantages, turn_BT, strict=True)]
    assert means == pytest.approx(z_B.tolist(), abs=1e-12)


def test_ragged_turns_and_the_precision_of_z() -> None:
    turn = torch.tensor([[0, 1, 2], [0, -1, -1], [-1, -1, -1]])
    z_B = torch.tensor([1.0, -1.0, 3.0], dtype=torch.float32)
    advantages = credit.token_advantages(z_B, [[1.0, 1.0, 1.0], [1.0], []], turn)
    assert advantages.dtype == torch.float32
    assert advantages.tolist() == [[1.0] * 3, [-1.0, 0.0, 0.0], [0.0] * 3]


def test_impossible_input_is_an_error() -> None:
    z_B = torch.ones(1)
    with pytest.raises(ValueError):
        credit.episode_z_scores(tensor([0.0, math.nan]))
    with pytest.raises(ShapeError, match="scores_PN"):
        credit.groups_without_spread(torch.zeros(3))
    with pytest.raises(ShapeError):
        credit.token_advantages(z_B, [[1.0], [1.0]], torch.zeros(1, 2, dtype=torch.int64))
    for turn in (1, -2):
        with pytest.raises(ValueError):
            credit.token_advantages(z_B, [[1.0]], torch.tensor([[0, turn]]))
