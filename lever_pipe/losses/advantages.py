"""From the rewards of a group to advantages.

The published three steps: z-score over all selections of a query, keep the k best, standardise again over the kept
ones. Selections that the policy has drawn itself are all kept, and `group_advantages` or one of the last three
functions is enough; how the gradient that each gives relates to that of the expected reward stands with it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lever_pipe.base.shapes import shaped
from lever_pipe.losses.reduction import (
    group_has_spread,
    group_means,
    group_standard_deviations,
    group_z_scores,
    masked,
)

_SMALLEST_STD = 1e-12
"""Below it the published code hands the raw rewards on instead of z-scores."""


class TopSelections(NamedTuple):
    """The kept selections of every query."""

    indices: Tensor
    """[B, k] int64, positions in the group, best first."""
    valid: Tensor
    """[B, k] bool, false where a group has fewer than k valid selections."""


@shaped
def published_z_scores(rewards_BG: Tensor, valid_BG: Tensor, *, clamp: float) -> Tensor:
    """Return the standardised rewards of each query, [B, G]; 0 at padding.

    z = clamp((R - mean) / std, -clamp, clamp),  std unbiased over all valid selections;
    z = R where std <= 1e-12 (all rewards equal, or a group of one), not clamped.

    Args:
        rewards_BG: [B, G] rewards.
        valid_BG: [B, G] bool.
        clamp: bound on |z|.

    Source: Lever-Plus published code
    """
    spread_B1 = group_standard_deviations(rewards_BG, valid_BG)[:, None] > _SMALLEST_STD
    z_BG = group_z_scores(rewards_BG, valid_BG).clamp(-clamp, clamp)
    return torch.where(spread_B1, z_BG, masked(rewards_BG, valid_BG))


@shaped
def top_k_by_reward(z_BG: Tensor, valid_BG: Tensor, k: int) -> TopSelections:
    """Return the k best selections of each query, best first.

    Ties keep the stored order: of equal rewards the earlier selection comes first. Three reward
    levels make ties the rule, so this decides which selections are trained on. With fewer than k
    selections in the widest group, k is that width.

    Args:
        z_BG: [B, G] standardised rewards (any monotone recoding gives the same choice).
        valid_BG: [B, G] bool; padding comes last and stays invalid.
        k: selections to keep, at least 1.

    Raises:
        ValueError: k is less than 1.

    Source: Lever-Plus published code
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    best_first = masked(z_BG, valid_BG, -torch.inf).sort(dim=1, descending=True, stable=True)
    indices_Bk = best_first.indices[:, :k]
    return TopSelections(indices_Bk, valid_BG.gather(1, indices_Bk))


@shaped
def group_advantages(z_BG: Tensor, valid_BG: Tensor, *, std_floor: float, clamp: float) -> Tensor:
    """Return the advantages of the kept selections, [B, G]; 0 at padding.

    A = clamp((z - mean) / max(std, std_floor), -clamp, clamp),  std unbiased over the kept ones.

    Exactly 0 throughout a group whose rewards are all equal, and for a group of one. Without the
    floor and the clamp at work, mean A = 0 and std A = 1 in every group that has a spread.

    Args:
        z_BG: [B, G] standardised rewards of the kept selections.
        valid_BG: [B, G] bool.
        std_floor: lower bound on the divisor, so that nearly equal rewards stay small.
        clamp: bound on |A|.

    Source: Shao 2024 (GRPO)
    """
    return group_z_scores(z_BG, valid_BG, floor=std_floor).clamp(-clamp, clamp)


@shaped
def centred_advantages(rewards_BG: Tensor, valid_BG: Tensor) -> Tensor:
    """Return R - mean over the query's valid selections, [B, G]; 0 at padding.

    No division by the spread: a query of nearly equal rewards moves the policy little. A reward is part of the mean
    it is held against, so over draws of the policy the gradient is (n - 1) / n times that of the expected reward,
    n being the number of draws: the direction is right. Exactly 0 throughout a group without spread or of one.

    Args:
        rewards_BG: [B, G] rewards.
        valid_BG: [B, G] bool.

    Source: Liu 2025 (Dr. GRPO)
    """
    centred_BG = rewards_BG - group_means(rewards_BG, valid_BG)[:, None]
    return masked(centred_BG, valid_BG & group_has_spread(rewards_BG, valid_BG)[:, None])


def leave_one_out_advantages(rewards_BG: Tensor, valid_BG: Tensor) -> Tensor:
    """Return R_i - mean of the query's other valid rewards, [B, G]; 0 at padding.

    A_i = R_i - sum_(j != i) R_j / (n - 1) = (R_i - mean) n / (n - 1)

    The baseline of a draw does not depend on that draw, so over draws of the policy the gradient is that of the
    expected reward, without bias. Exactly 0 throughout a group without spread or of one.

    Args:
        rewards_BG: [B, G] rewards.
        valid_BG: [B, G] bool.

    Source: Kool 2019 (leave-one-out)
    Source: Ahmadian 2024 (RLOO)
    """
    centred_BG = centred_advantages(rewards_BG, valid_BG)
    counts_B1 = valid_BG.sum(dim=1, keepdim=True).to(rewards_BG.dtype)
    return centred_BG * (counts_B1 / (counts_B1 - 1).clamp(min=1))


@shaped
def batch_advantages(rewards_BG: Tensor, valid_BG: Tensor) -> Tensor:
    """Return R - mean of all valid rewards of the batch's other queries, [B, G]; 0 at padding.

    The baseline knows nothing of the query itself: no bias, but how hard the query is stays in the advantage as
    noise, and a group without spread still moves the policy. A query without others is held against 0, which keeps
    the expected gradient. Exactly 0 throughout a batch of several queries whose rewards are all equal.

    Args:
        rewards_BG: [B, G] rewards.
        valid_BG: [B, G] bool.

    Source: Williams 1992 (REINFORCE)
    """
    sums_B = masked(rewards_BG, valid_BG).sum(dim=1)
    counts_B = valid_BG.sum(dim=1)
    other_counts_B = counts_B.sum() - counts_B
    baselines_B = (sums_B.sum() - sums_B) / other_counts_B.clamp(min=1).to(rewards_BG.dtype)
    # The mean of equal floats is often off by a rounding, which would count as a signal.
    differ = group_has_spread(rewards_BG.reshape(1, -1), valid_BG.reshape(1, -1))
    meaningful_BG = valid_BG & (differ | (other_counts_B == 0))[:, None]
    return masked(rewards_BG - baselines_B[:, None], meaningful_BG)
