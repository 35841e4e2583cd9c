"""Advantages of tokens from the turn rewards of episodes.

P  tasks of a step          N  episodes of a task (a group)          B  episodes          T  token positions

Episodes of a group are compared by a trajectory score. Turn credits distribute an episode's advantage over its turns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import assert_never

import torch
from torch import Tensor

from lever_pipe.base.records import TrajectoryScore, TurnCredit
from lever_pipe.base.shapes import ShapeError, shaped
from lever_pipe.losses.advantages import centred_advantages, leave_one_out_advantages
from lever_pipe.losses.reduction import group_has_spread, group_z_scores, masked

SMALLEST_DEVIATION = 1e-6
"""Added to a group's standard deviation, as published."""
_SCORE_DECIMALS = 12
"""Decimals of a score: equal sums of decimal rewards must tie in spite of floating-point errors."""
_PUBLISHED_DECIMALS = 4


def trajectory_score(rewards: Sequence[float], kind: TrajectoryScore, gamma: float) -> float:
    """Return the score of an episode for comparison within its group.

    sum: sum_t r_t;  mean: sum_t r_t / T;  r2g: sum_t gamma^t r_t, with t = 0 for the first turn

    `mean` is called "Sum" in the published code and rounded to 4 decimals as there. It decreases with a further turn
    whose reward is below the mean so far, although validation measures the sum. 0 for an episode without turns.

    Args:
        rewards: r, one per turn, with 0 for a closing turn.
        kind: one of the three scores.
        gamma: discount per turn; `r2g` only.

    Source: UserRL published code
    """
    match kind:
        case "sum":
            return round(math.fsum(rewards), _SCORE_DECIMALS)
        case "mean":
            return round(math.fsum(rewards) / max(1, len(rewards)), _PUBLISHED_DECIMALS)
        case "r2g":
            return round(math.fsum(gamma**turn * reward for turn, reward in enumerate(rewards)), _SCORE_DECIMALS)
    assert_never(kind)


def turn_credits(rewards: Sequence[float], kind: TurnCredit, gamma: float) -> list[float]:
    """Return the weight of each turn in its episode's advantage.

    equalized: 1;  r2g: sum_(u >= t) gamma^(u - t) r_u;  em: 1/2 + (1 - e^(-2 r_t)) / (1 - e^-2) / 2

    `em` increases from 1/2 at reward 0 to 1 at reward 1. `r2g` is 0 for all turns of an episode without rewards.

    Args:
        rewards: r, one per turn.
        kind: one of the three credits.
        gamma: discount per turn; `r2g` only.

    Source: UserRL published code
    """
    match kind:
        case "equalized":
            return [1.0] * len(rewards)
        case "r2g":
            return _rewards_to_go(rewards, gamma)
        case "em":
            return [0.5 + 0.5 * math.expm1(-2 * reward) / math.expm1(-2) for reward in rewards]
    assert_never(kind)


def _rewards_to_go(rewards: Sequence[float], gamma: float) -> list[float]:
    to_go: list[float] = []
    rest = 0.0
    for reward in reversed(rewards):
        rest = reward + gamma * rest
        to_go.append(rest)
    return to_go[::-1]


def groups_without_spread(scores_PN: Tensor) -> Tensor:
    """Return whether all scores of a task's episodes are equal, bool [P]; such a task has no policy gradient.

    The comparison is exact. False for groups of one, which keep their score (`episode_z_scores`).

    Args:
        scores_PN: [P, N] trajectory scores.

    Raises:
        ValueError: a score is not finite.

    Source: this project
    """
    valid_PN = _all_valid(scores_PN)
    if scores_PN.shape[1] == 1:
        return torch.zeros_like(valid_PN[:, 0])
    return ~group_has_spread(scores_PN, valid_PN)


def episode_z_scores(scores_PN: Tensor) -> Tensor:
    """Return the standardized scores of each task's episodes, float64 [P, N].

    Z = (S - mean) / (sd + 1e-6),  sd with divisor N - 1;  Z = S / (1 + 1e-6) for groups of one, as published

    Exactly 0 for all episodes of a group with equal scores, although the standard deviation of equal floats is often a
    rounding error above 0.

    Args:
        scores_PN: [P, N] trajectory scores S.

    Raises:
        ValueError: a score is not finite.

    Source: UserRL published code
    """
    valid_PN = _all_valid(scores_PN)
    scores_PN = scores_PN.to(torch.float64)
    if scores_PN.shape[1] == 1:
        return scores_PN / (1 + SMALLEST_DEVIATION)
    return group_z_scores(scores_PN, valid_PN, added=SMALLEST_DEVIATION)


def centred_scores(scores_PN: Tensor) -> Tensor:
    """Return the scores of each task's episodes minus their mean, float64 [P, N]; not divided by the deviation.

    Z = S - mean;  Z = S for groups of one, as `episode_z_scores`

    A group with nearly equal scores changes the policy little. Exactly 0 for all episodes of a group with equal scores.

    Args:
        scores_PN: [P, N] trajectory scores S.

    Raises:
        ValueError: a score is not finite.

    Source: Liu 2025 (Dr. GRPO)
    """
    valid_PN = _all_valid(scores_PN)
    scores_PN = scores_PN.to(torch.float64)
    return scores_PN if scores_PN.shape[1] == 1 else centred_advantages(scores_PN, valid_PN)


def kl_rewards(divergences_PN: Tensor) -> Tensor:
    """Return the advantage of each episode from the KL as a reward, before weighting, float64 [P, N].

    R_i = -(K_i - mean of the other episodes' K),  K = sum over the episode's tokens of log policy - log reference

    It is added to the advantage of every token after standardization, so the meaning of its weight does not depend on
    the rewards. Over samples of the policy, the mean of sum_j R grad log p_j is the negated gradient of KL(policy ||
    reference) of whole episodes, without bias. 0 for a group of one.

    Args:
        divergences_PN: [P, N] K, under the policy that sampled the episodes.

    Raises:
        ValueError: a K is not finite.

    Source: Kool 2019 (leave-one-out)
    Source: Shah 2025 (comedy of estimators)
    """
    valid_PN = _all_valid(divergences_PN)
    return leave_one_out_advantages(-divergences_PN.to(torch.float64), valid_PN)


@shaped
def _all_valid(scores_PN: Tensor) -> Tensor:
    if not scores_PN.isfinite().all():
        raise ValueError(f"scores_PN must be finite, got {scores_PN.tolist()}")
    return torch.ones_like(scores_PN, dtype=torch.bool)


@shaped
def token_advantages(z_B: Tensor, credits_by_turn: Sequence[Sequence[float]], turn_BT: Tensor) -> Tensor:
    """Return the advantage of each token, [B, T]; 0 outside the agent's turns.

    A_j = Z a_j n / sum_i a_i,  a_j = credit of the turn of token j,  n = number of tokens with a_j != 0

    The mean of A over the tokens of an episode with credit is Z. With all credits 1, A is exactly Z, as in plain GRPO.
    If the credits of an episode sum to 0, A is 0 for all its tokens, independent of Z.

    Args:
        z_B: [B] standardized scores of the episodes.
        credits_by_turn: B lists with one credit per turn.
        turn_BT: [B, T] turn of each agent token, counted from 0; -1 elsewhere (int64).

    Raises:
        ValueError: a token belongs to a turn without a credit.

    Source: UserRL published code
    """
    if len(credits_by_turn) != len(z_B):
        raise ShapeError(f"credits_by_turn must have one list an episode, B={len(z_B)}, got {len(credits_by_turn)}")
    weights_BT = _credit_of_each_token(credits_by_turn, turn_BT).to(z_B)
    sums_B = weights_BT.sum(dim=1)
    earning_B = sums_B != 0
    # Divide before multiplying by Z: n / n is exactly 1, so that credits of 1 give exactly Z.
    scales_B = weights_BT.count_nonzero(dim=1) / masked(sums_B, earning_B, 1.0)
    return weights_BT * masked(scales_B * z_B, earning_B)[:, None]


def _credit_of_each_token(credits_by_turn: Sequence[Sequence[float]], turn_BT: Tensor) -> Tensor:
    """Return the credit of each token, float64 [B, T] on the device of `turn_BT`; 0 for turn -1."""
    n_turns_B1 = torch.tensor([[len(row)] for row in credits_by_turn], device=turn_BT.device)
    strangers = turn_BT[(turn_BT < -1) | (turn_BT >= n_turns_B1)].tolist()
    if strangers:
        raise ValueError(f"turn_BT must contain -1 or a turn that has a credit, got {sorted(set(strangers))}")
    width = max(map(len, credits_by_turn), default=0)
    padded = [[0.0, *row, *[0.0] * (width - len(row))] for row in credits_by_turn]  # column 0 is for turn -1
    table = torch.tensor(padded, dtype=torch.float64, device=turn_BT.device)
    return table.gather(1, turn_BT + 1)
