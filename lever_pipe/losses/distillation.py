"""Supervised learning of the first pick from weights over the pool, such as equal weights of the best candidates."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lever_pipe.base.shapes import shaped
from lever_pipe.losses.reduction import masked


@dataclass(frozen=True, slots=True)
class DistillationTerms:
    """Scalars of one step, means over the queries with a target (0 without any); only `total` has a gradient."""

    total: Tensor
    """[] cross-entropy of the first pick to the target, nats per query."""
    target_entropy: Tensor
    """[] entropy of the target, nats: the lower bound of `total`."""
    agreement: Tensor
    """[] share of queries whose highest score belongs to a candidate of the target."""
    gradient_share: Tensor
    """[] share of all queries that have a target; the others are omitted from the means."""


@shaped
def distillation_terms(scores_BK: Tensor, targets_BK: Tensor) -> DistillationTerms:
    """Return the cross-entropy of the first pick to a target distribution over the pool.

    t = targets / sum of the row;  L_q = - sum_k t_k ln softmax(scores)_k;  total = mean_q L_q

    A row of zeros, for a pool without any good candidate, is omitted from every mean except `gradient_share`. In a
    static ranking, the first pick determines the whole policy: if candidates of equal weight rank first, the ranking
    is right for every number of shots.

    Args:
        scores_BK: [B, K] logits of the pool, already divided by the temperature.
        targets_BK: [B, K] weights, finite and at least 0. Weights of 1 at the best candidates and 0 elsewhere give the
            uniform distribution over the best. A constant: no gradient flows to it.

    Raises:
        ValueError: a weight is negative or not finite.

    Source: Cao 2007 (ListNet)
    """
    if not (targets_BK.isfinite() & (targets_BK >= 0)).all():
        raise ValueError(f"targets_BK must be finite and at least 0, got {targets_BK.tolist()}")
    weights_BK = targets_BK.detach().to(scores_BK.dtype)
    sums_B1 = weights_BK.sum(dim=1, keepdim=True)
    present_B = sums_B1[:, 0] > 0
    # A divisor of 1 in rows without a target: 0 / 0 would be NaN.
    shares_BK = weights_BK / masked(sums_B1, present_B[:, None], 1.0)
    losses_B = -(shares_BK * scores_BK.log_softmax(dim=1)).sum(dim=1)
    best_B1 = scores_BK.detach().argmax(dim=1, keepdim=True)
    hits_B = (shares_BK.gather(1, best_B1)[:, 0] > 0).to(scores_BK.dtype)
    return DistillationTerms(
        total=_mean_over(losses_B, present_B),
        target_entropy=_mean_over(torch.special.entr(shares_BK).sum(dim=1), present_B),
        agreement=_mean_over(hits_B, present_B),
        gradient_share=present_B.to(scores_BK.dtype).mean(),
    )


def _mean_over(values_B: Tensor, present_B: Tensor) -> Tensor:
    count = present_B.sum().clamp(min=1).to(values_B.dtype)
    return masked(values_B, present_B).sum() / count
