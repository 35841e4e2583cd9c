"""Policy-gradient surrogates over groups of selections, and the terms that both GRPO objectives report."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lever_pipe.losses.reduction import group_standard_deviations, masked, mean_of_group_means, mean_over_queries


@dataclass(frozen=True, slots=True)
class SurrogateTerms:
    """The clipped surrogate and the share of clipped selections."""

    loss: Tensor
    """[] lower is better."""
    clip_fraction: Tensor
    """[] share of valid selections without gradient because of the clip, in [0, 1], detached."""


def clipped_surrogate(
    log_ratio_BG: Tensor, advantages_BG: Tensor, valid_BG: Tensor, clip_epsilon: float, clip_high: float | None = None
) -> SurrogateTerms:
    """Return the negated clipped objective, and the share of selections without gradient because of the clip.

    loss = - mean_query mean_valid min(rho A, clip(rho, 1 - eps, 1 + high) A),  rho = exp(log_ratio_BG)

    A selection is clipped if the clipped branch is strictly smaller: rho > 1 + high with A > 0, or
    rho < 1 - eps with A < 0. In the other two cases outside the trust region the gradient remains,
    because it leads back into the region. A = 0 never counts as clipped.

    Args:
        log_ratio_BG: [B, G] log P(selection) under the policy minus log P under the behavior policy.
        advantages_BG: [B, G] A, a constant: no gradient flows to it.
        valid_BG: [B, G] bool.
        clip_epsilon: eps, the clip range below 1, greater than 0.
        clip_high: high, the clip range above 1; None for eps.

    Source: Schulman 2017 (PPO)
    Source: Yu 2025 (DAPO, clip-higher)
    """
    advantages_BG = masked(advantages_BG.detach(), valid_BG)
    ratios_BG = masked(log_ratio_BG, valid_BG).exp()
    unclipped_BG = ratios_BG * advantages_BG
    clipped_BG = (
        ratios_BG.clamp(1 - clip_epsilon, 1 + (clip_epsilon if clip_high is None else clip_high)) * advantages_BG
    )
    n_valid = valid_BG.sum().clamp(min=1).to(ratios_BG.dtype)
    return SurrogateTerms(
        loss=-mean_of_group_means(torch.minimum(unclipped_BG, clipped_BG), valid_BG),
        clip_fraction=(clipped_BG < unclipped_BG).detach().sum() / n_valid,
    )


@dataclass(frozen=True, slots=True)
class PolicyTerms:
    """Scalars of one step; `total = policy + kl_beta * penalty`, and only these three have gradients.

    Means are over a query's valid selections, then over queries. `policy` is a mean over the queries of its surrogate;
    all others are means over every query with a valid selection. `clip_fraction` weights all selections equally.
    """

    policy: Tensor
    """Surrogate; lower is better."""
    penalty: Tensor
    """Mean distance from the reference, nats per selection, before weighting."""
    total: Tensor
    """The loss to minimize."""
    mean_ratio: Tensor
    """Mean of policy / behavior in `on_policy_terms`, of policy / reference in `grpo_terms`; 1 while both are equal."""
    clip_fraction: Tensor
    """Share of valid selections without gradient because of the clip; 0 without a clip."""
    mean_advantage: Tensor
    """0 by construction for group-relative advantages, unless one is clamped."""
    std_advantage: Tensor
    """Mean over queries of the unbiased standard deviation of A within the group."""
    max_advantage: Tensor
    """Mean over queries of the largest |A| of the group."""
    gradient_share: Tensor
    """Share of queries with a non-zero advantage: only these contribute to the gradient of the policy term."""


def policy_terms(
    surrogate: SurrogateTerms,
    penalty: Tensor,
    *,
    log_ratio_BG: Tensor,
    advantages_BG: Tensor,
    valid_BG: Tensor,
    kl_beta: float,
) -> PolicyTerms:
    """Return the loss of a batch of groups and its statistics.

    total = policy + kl_beta * penalty

    Args:
        surrogate: the policy term, [], and the share of clipped selections.
        penalty: [] the distance from the reference.
        log_ratio_BG: [B, G] log of policy / behaviour, 0 where invalid.
        advantages_BG: [B, G] A, a constant, 0 where invalid.
        valid_BG: [B, G] bool.
        kl_beta: weight of the penalty, at least 0.

    Source: Shao 2024 (GRPO)
    """
    largest_B = advantages_BG.abs().amax(dim=1)
    return PolicyTerms(
        policy=surrogate.loss,
        penalty=penalty,
        total=surrogate.loss + kl_beta * penalty,
        mean_ratio=mean_of_group_means(log_ratio_BG.detach().exp(), valid_BG),
        clip_fraction=surrogate.clip_fraction,
        mean_advantage=mean_of_group_means(advantages_BG, valid_BG),
        std_advantage=mean_over_queries(group_standard_deviations(advantages_BG, valid_BG), valid_BG),
        max_advantage=mean_over_queries(largest_B, valid_BG),
        gradient_share=mean_over_queries((largest_B > 0).to(advantages_BG.dtype), valid_BG),
    )
