"""Reward-weighted cross-entropy: imitate the selections of a query in proportion to reward."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lever_pipe.base.shapes import shaped
from lever_pipe.losses.reduction import masked, mean_over_queries


@dataclass(frozen=True, slots=True)
class RceTerms:
    """Scalars of one step; only `total` has a gradient."""

    total: Tensor
    """[] weighted cross-entropy, mean over queries, nats per selection."""
    weights_entropy: Tensor
    """[] mean over queries of the entropy of the imitation weights, nats; ln G is uniform."""
    max_weight: Tensor
    """[] mean over queries of the largest imitation weight, in (0, 1]."""


def imitation_weights(rewards_BG: Tensor, valid_BG: Tensor, *, temperature: float) -> Tensor:
    """Return softmax(R / t) over each query's valid selections, [B, G]; 0 at padding.

    A constant added to a query's rewards has no effect. Equal rewards give equal weights, so a query with only
    failures is imitated as much as a query with only successes.

    Args:
        rewards_BG: [B, G] rewards, raw or standardized.
        valid_BG: [B, G] bool; a query without valid selections gets weights 0.
        temperature: t > 0; small values imitate the best selections only.

    Raises:
        ValueError: the temperature is not positive.

    Source: Lever-Plus published code
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    # Finite instead of -inf: the softmax of a row without valid selections would be NaN.
    lowest = torch.finfo(rewards_BG.dtype).min
    logits_BG = masked(rewards_BG.detach() / temperature, valid_BG, lowest)
    return masked(logits_BG.softmax(dim=1), valid_BG)


@shaped
def reward_ranges(rewards_BG: Tensor, valid_BG: Tensor) -> Tensor:
    """Return max R - min R over each query's valid selections, [B]; 0 for a query without any.

    Used as `query_weights_B`, it gives weight 0 to queries whose selections all have the same reward.

    Source: this project
    """
    highest_B = masked(rewards_BG, valid_BG, -torch.inf).amax(dim=1)
    lowest_B = masked(rewards_BG, valid_BG, torch.inf).amin(dim=1)
    return masked(highest_B - lowest_B, valid_BG.any(dim=1))


@shaped
def rce_terms(
    *,
    log_probs_BG: Tensor,
    rewards_BG: Tensor,
    valid_BG: Tensor,
    temperature: float,
    query_weights_B: Tensor | None = None,
) -> RceTerms:
    """Return the reward-weighted cross-entropy of a batch of groups.

    w = softmax(R / t);  L_q = - sum_i w_i ln P(tau_i | q);  total = mean_q v_q L_q

    v_q = 1 in the published loss. Other query weights are not normalized: a query of weight 0 still counts in the
    mean, so it makes the step smaller instead of increasing the weight of other queries.

    Args:
        log_probs_BG: [B, G] ln P(selection) under the trained policy (sum over its steps).
        rewards_BG: [B, G] rewards, raw or standardized.
        valid_BG: [B, G] bool; a query without valid selections is omitted from every mean.
        temperature: t > 0 of the imitation weights.
        query_weights_B: [B] v_q at least 0, for example `reward_ranges`; None for 1.

    Raises:
        ValueError: the temperature is not positive.

    Source: Lever-Plus published code
    """
    if query_weights_B is None:
        query_weights_B = torch.ones_like(log_probs_BG[:, 0])
    weights_BG = imitation_weights(rewards_BG, valid_BG, temperature=temperature)
    losses_B = -(weights_BG * masked(log_probs_BG, valid_BG)).sum(dim=1)
    entropies_B = torch.special.entr(weights_BG).sum(dim=1)
    return RceTerms(
        total=mean_over_queries(query_weights_B.detach() * losses_B, valid_BG),
        weights_entropy=mean_over_queries(entropies_B, valid_BG),
        max_weight=mean_over_queries(weights_BG.amax(dim=1), valid_BG),
    )
