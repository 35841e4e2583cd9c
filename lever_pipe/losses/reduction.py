"""The reduction of all group losses: mean within a query, then mean over queries.

The `valid` mask replaces padding before a formula is applied (`masked`). The content of a padded cell, even infinity,
therefore affects neither a value nor a gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor


def masked(values: Tensor, valid: Tensor, fill: float = 0.0) -> Tensor:
    """Return `values` with `fill` wherever `valid` is false; both have the same shape.

    Source: this project
    """
    # Not `values * valid`: infinity or NaN times 0 is NaN.
    return torch.where(valid, values, fill)


def group_means(values_BG: Tensor, valid_BG: Tensor) -> Tensor:
    """Return the mean over each query's valid selections, [B]; 0 for a query without any.

    Source: this project
    """
    counts_B = valid_BG.sum(dim=1).clamp(min=1).to(values_BG.dtype)
    return masked(values_BG, valid_BG).sum(dim=1) / counts_B


def mean_over_queries(values_B: Tensor, valid_BG: Tensor) -> Tensor:
    """Return the mean of `values_B` over queries with at least one valid selection, [].

    0 when no query has one.

    Source: this project
    """
    present_B = valid_BG.any(dim=1)
    count = present_B.sum().clamp(min=1).to(values_B.dtype)
    return masked(values_B, present_B).sum() / count


def mean_of_group_means(values_BG: Tensor, valid_BG: Tensor) -> Tensor:
    """Return mean over queries of the mean over a query's valid selections, [].

    Every query has the same weight, independent of its number of selections.

    Source: this project
    """
    return mean_over_queries(group_means(values_BG, valid_BG), valid_BG)


def group_has_spread(values_BG: Tensor, valid_BG: Tensor) -> Tensor:
    """Return whether a query has different valid values, bool [B].

    The comparison is exact: the standard deviation of equal floats is often a rounding error above 0, and a z-score
    would amplify it to a signal of normal size.

    Source: this project
    """
    highest_B = masked(values_BG, valid_BG, -torch.inf).amax(dim=1)
    lowest_B = masked(values_BG, valid_BG, torch.inf).amin(dim=1)
    return highest_B > lowest_B


def group_standard_deviations(values_BG: Tensor, valid_BG: Tensor) -> Tensor:
    """Return the unbiased standard deviation of each query's valid values, [B].

    Exactly 0 for a query with equal values or with fewer than two.

    Source: this project
    """
    means_B = group_means(values_BG, valid_BG)
    squares_BG = masked((values_BG - means_B[:, None]) ** 2, valid_BG)
    degrees_B = (valid_BG.sum(dim=1) - 1).clamp(min=1).to(values_BG.dtype)
    deviations_B = (squares_BG.sum(dim=1) / degrees_B).sqrt()
    return masked(deviations_B, group_has_spread(values_BG, valid_BG))


def group_z_scores(values_BG: Tensor, valid_BG: Tensor, *, floor: float = 0.0, added: float = 0.0) -> Tensor:
    """Return the standardized valid values of each query, [B, G]; 0 at padding.

    Z = (V - mean) / (max(std, floor) + added),  std unbiased

    Exactly 0 for all values of a group with equal values, and for a group of one.

    Args:
        values_BG: [B, G].
        valid_BG: [B, G] bool.
        floor: minimum of the standard deviation, so that z-scores of nearly equal values stay small.
        added: constant added to the standard deviation.

    Source: Shao 2024 (GRPO)
    """
    centred_BG = values_BG - group_means(values_BG, valid_BG)[:, None]
    stds_B1 = group_standard_deviations(values_BG, valid_BG)[:, None]
    z_BG = centred_BG / (stds_B1.clamp(min=floor) + added)
    return masked(z_BG, valid_BG & group_has_spread(values_BG, valid_BG)[:, None])
