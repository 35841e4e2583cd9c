"""From the rewards of a group to advantages, in the published three steps.

z-score over all selections of a query, keep the k best, standardise again over the kept ones.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lever_pipe.losses.reduction import (
    group_has_spread,
    group_means,
    group_standard_deviations,
    masked,
)
from lever_pipe.shapes import require_shapes

_SMALLEST_STD = 1e-12
"""Below it the published code hands the raw rewards on instead of z-scores."""


class Kept(NamedTuple):
    """The kept selections of every query."""

    indices: Tensor
    """[B, k] int64, positions in the group, best first."""
    valid: Tensor
    """[B, k] bool, false where a group has fewer than k valid selections."""


def group_z_scores(rewards_BG: Tensor, valid_BG: Tensor, *, clamp: float) -> Tensor:
    """Return the standardised rewards of each query, [B, G]; 0 at padding.

    z = clamp((R - mean) / std, -clamp, clamp),  std unbiased over all valid selections;
    z = R where std <= 1e-12 (all rewards equal, or a group of one), not clamped.

    Args:
        rewards_BG: [B, G] rewards.
        valid_BG: [B, G] bool.
        clamp: bound on |z|.

    Raises:
        ShapeError: the shapes disagree.

    Source: Lever-Plus published code
    """
    require_shapes(("rewards_BG", "B G", rewards_BG), ("valid_BG", "B G", valid_BG))
    means_B1 = group_means(rewards_BG, valid_BG)[:, None]
    stds_B1 = group_standard_deviations(rewards_BG, valid_BG)[:, None]
    spread_B1 = stds_B1 > _SMALLEST_STD
    safe_stds_B1 = masked(stds_B1, spread_B1, 1.0)
    z_BG = ((rewards_BG - means_B1) / safe_stds_B1).clamp(-clamp, clamp)
    return masked(torch.where(spread_B1, z_BG, rewards_BG), valid_BG)


def top_k_by_reward(z_BG: Tensor, valid_BG: Tensor, k: int) -> Kept:
    """Return the k best selections of each query, best first.

    Ties keep the stored order: of equal rewards the earlier selection comes first. Three reward
    levels make ties the rule, so this decides which selections are trained on. With fewer than k
    selections in the widest group, k is that width.

    Args:
        z_BG: [B, G] standardised rewards (any monotone recoding gives the same choice).
        valid_BG: [B, G] bool; padding comes last and stays invalid.
        k: selections to keep, at least 1.

    Raises:
        ShapeError: the shapes disagree.
        ValueError: k is less than 1.

    Source: Lever-Plus published code
    """
    require_shapes(("z_BG", "B G", z_BG), ("valid_BG", "B G", valid_BG))
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    best_first = masked(z_BG, valid_BG, -torch.inf).sort(dim=1, descending=True, stable=True)
    indices_Bk = best_first.indices[:, :k]
    return Kept(indices_Bk, valid_BG.gather(1, indices_Bk))


def group_advantages(z_kept: Tensor, valid: Tensor, *, std_floor: float, clamp: float) -> Tensor:
    """Return the advantages of the kept selections, [B, G]; 0 at padding.

    A = clamp((z - mean) / max(std, std_floor), -clamp, clamp),  std unbiased over the kept ones.

    Exactly 0 throughout a group whose rewards are all equal, and for a group of one. Without the
    floor and the clamp at work, mean A = 0 and std A = 1 in every group that has a spread.

    Args:
        z_kept: [B, G] standardised rewards of the kept selections.
        valid: [B, G] bool.
        std_floor: lower bound on the divisor, so that nearly equal rewards stay small.
        clamp: bound on |A|.

    Raises:
        ShapeError: the shapes disagree.

    Source: Shao 2024 (GRPO)
    """
    require_shapes(("z_kept", "B G", z_kept), ("valid", "B G", valid))
    centred_BG = z_kept - group_means(z_kept, valid)[:, None]
    stds_B1 = group_standard_deviations(z_kept, valid)[:, None]
    scaled_BG = (centred_BG / stds_B1.clamp(min=std_floor)).clamp(-clamp, clamp)
    return masked(scaled_BG, valid & group_has_spread(z_kept, valid)[:, None])
