"""Advantages from the rewards of a group.

The published method has three steps: standardize the rewards of all selections of a query, select the k best, and
standardize again over these. For samples of the policy itself, all selections stay, and a single function suffices:
`group_advantages` or one of the last three. Their docstrings compare the resulting gradient with the gradient of the
expected reward.
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
"""Standard deviation below which the published code uses the raw rewards instead of z-scores."""


class TopSelections(NamedTuple):
    """The k best selections of every query."""

    indices: Tensor
    """[B, k] int64, positions in the group, best first."""
    valid: Tensor
    """[B, k] bool, false where a group has fewer than k valid selections."""


@shaped
def published_z_scores(rewards_BG: Tensor, valid_BG: Tensor, *, clamp: float) -> Tensor:
    """Return the standardized rewards of each query, [B, G]; 0 at padding.

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

    The sort is stable: among equal rewards, the earlier selection is first. With only three reward levels, most
    rewards tie, so the stored order decides which selections are trained on. If the widest group has fewer than k
    selections, k is that width.

    Args:
        z_BG: [B, G] standardized rewards (any monotone transformation selects the same).
        valid_BG: [B, G] bool; padding is last and stays invalid.
        k: number of selections, at least 1.

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
    """Return the advantages of the selections, [B, G]; 0 at padding.

    A = clamp((z - mean) / max(std, std_floor), -clamp, clamp),  std unbiased over the valid selections.

    Exactly 0 for all selections of a group with equal rewards, and for a group of one. If neither the
    floor nor the clamp applies, mean A = 0 and std A = 1 in every group with unequal rewards.

    Args:
        z_BG: [B, G] standardized rewards of the selections.
        valid_BG: [B, G] bool.
        std_floor: lower bound on the divisor, so that advantages of nearly equal rewards stay small.
        clamp: bound on |A|.

    Source: Shao 2024 (GRPO)
    """
    return group_z_scores(z_BG, valid_BG, floor=std_floor).clamp(-clamp, clamp)


@shaped
def centred_advantages(rewards_BG: Tensor, valid_BG: Tensor) -> Tensor:
    """Return R - mean over the query's valid selections, [B, G]; 0 at padding.

    Without a division by the standard deviation, a query with nearly equal rewards changes the policy little. Each
    reward is part of its own baseline. Over samples of the policy, the expected gradient is therefore (n - 1) / n times
    the gradient of the expected reward, for n samples: its direction is correct. Exactly 0 for all selections of a
    group with equal rewards, and for a group of one.

    Args:
        rewards_BG: [B, G] rewards.
        valid_BG: [B, G] bool.

    Source: Liu 2025 (Dr. GRPO)
    """
    centred_BG = rewards_BG - group_means(rewards_BG, valid_BG)[:, None]
    # The mean of equal floats can differ from them by a rounding error, which must not become a signal.
    return masked(centred_BG, valid_BG & group_has_spread(rewards_BG, valid_BG)[:, None])


def leave_one_out_advantages(rewards_BG: Tensor, valid_BG: Tensor) -> Tensor:
    """Return R_i - mean of the query's other valid rewards, [B, G]; 0 at padding.

    A_i = R_i - sum_(j != i) R_j / (n - 1) = (R_i - mean) n / (n - 1)

    The baseline of a sample does not depend on that sample. Over samples of the policy, the gradient is therefore an
    unbiased estimate of the gradient of the expected reward. Exactly 0 for all selections of a group with equal
    rewards, and for a group of one.

    Args:
        rewards_BG: [B, G] rewards.
        valid_BG: [B, G] bool.

    Source: Kool 2019 (leave-one-out)
    Source: Ahmadian 2024 (RLOO)
    """
    centred_BG = centred_advantages(rewards_BG, valid_BG)
    counts_B1 = valid_BG.sum(dim=1, keepdim=True).to(rewards_BG.dtype)
    return centred_BG * (counts_B1 / (counts_B1 - 1).clamp(min=1))  # a group of one has advantage 0 already


@shaped
def batch_advantages(rewards_BG: Tensor, valid_BG: Tensor) -> Tensor:
    """Return R - mean of all valid rewards of the batch's other queries, [B, G]; 0 at padding.

    The baseline does not depend on the query itself. It adds no bias, but the query's difficulty remains in the
    advantage as noise, and a group with equal rewards still changes the policy. For a single query, the baseline is 0,
    which has the same expected gradient. Exactly 0 for a batch of several queries with equal rewards.

    Args:
        rewards_BG: [B, G] rewards.
        valid_BG: [B, G] bool.

    Source: Williams 1992 (REINFORCE)
    """
    sums_B = masked(rewards_BG, valid_BG).sum(dim=1)
    counts_B = valid_BG.sum(dim=1)
    other_counts_B = counts_B.sum() - counts_B
    baselines_B = (sums_B.sum() - sums_B) / other_counts_B.clamp(min=1).to(rewards_BG.dtype)
    # The mean of equal floats often has a rounding error, which would count as a signal.
    differ = group_has_spread(rewards_BG.reshape(1, -1), valid_BG.reshape(1, -1))
    meaningful_BG = valid_BG & (differ | (other_counts_B == 0))[:, None]
    return masked(rewards_BG - baselines_B[:, None], meaningful_BG)
