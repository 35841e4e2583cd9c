"""Policy-gradient losses over groups of selections, one log-probability per whole selection.

`grpo_terms` is the published objective on stored selections. `on_policy_terms` is the objective on samples of the
policy itself. Both are the sum of a policy-gradient surrogate and a weighted distance from the reference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lever_pipe.base.shapes import shaped
from lever_pipe.losses.kl import k3
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


def score_function_surrogate(log_probs_BG: Tensor, advantages_BG: Tensor, valid_BG: Tensor) -> Tensor:
    """Return the loss whose gradient is the negated score-function estimate, [].

    loss = - mean_query mean_valid A log P

    Its value does not measure progress. There is no importance ratio: the gradient estimates the gradient of the
    expected reward only on samples of this policy.

    Args:
        log_probs_BG: [B, G] log P(selection) under the policy.
        advantages_BG: [B, G] A, a constant: no gradient flows to it.
        valid_BG: [B, G] bool.

    Source: Williams 1992 (REINFORCE)
    """
    return -mean_of_group_means(masked(advantages_BG.detach(), valid_BG) * masked(log_probs_BG, valid_BG), valid_BG)


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


@shaped
def grpo_terms(
    *,
    log_probs_BG: Tensor,
    reference_log_probs_BG: Tensor,
    advantages_BG: Tensor,
    valid_BG: Tensor,
    clip_epsilon: float,
    kl_beta: float,
) -> PolicyTerms:
    """Return the loss of a batch of stored groups and its statistics.

    policy  = - mean_query mean_valid min(rho A, clip(rho, 1 - eps, 1 + eps) A),  rho = policy / reference
    penalty =   mean_query mean_valid (rho - 1 - ln rho)
    total   = policy + kl_beta * penalty

    As published, the reference replaces the behavior policy in the ratio, although other generators produced the stored
    selections. There is therefore no importance correction, and the penalty, although 0 if policy and reference are
    equal, estimates neither direction of the KL. It would estimate KL(reference || policy) on samples of the reference.

    Args:
        log_probs_BG: [B, G] log P(selection) under the trained policy.
        reference_log_probs_BG: [B, G] the same under the frozen reference; no gradient flows to it.
        advantages_BG: [B, G] A, a constant (`losses/advantages.py`).
        valid_BG: [B, G] bool; a query without valid selections is omitted from every mean.
        clip_epsilon: half-width of the trust region.
        kl_beta: weight of the penalty, at least 0.

    Source: Shao 2024 (GRPO)
    """
    log_ratio_BG = masked(log_probs_BG - reference_log_probs_BG.detach(), valid_BG)
    advantages_BG = masked(advantages_BG.detach(), valid_BG)
    surrogate = clipped_surrogate(log_ratio_BG, advantages_BG, valid_BG, clip_epsilon)
    penalty = mean_of_group_means(k3(log_ratio_BG), valid_BG)
    return policy_terms(
        surrogate, penalty, log_ratio_BG=log_ratio_BG, advantages_BG=advantages_BG, valid_BG=valid_BG, kl_beta=kl_beta
    )


@shaped
def on_policy_terms(
    *,
    log_probs_BG: Tensor,
    behaviour_log_probs_BG: Tensor,
    advantages_BG: Tensor,
    divergences_BG: Tensor,
    valid_BG: Tensor,
    clip_epsilon: float | None,
    clip_high: float | None = None,
    kl_beta: float,
) -> PolicyTerms:
    """Return the loss of a batch of sampled groups and its statistics.

    policy  = - mean_moving mean_valid min(rho A, clip(rho, 1 - eps, 1 + high) A),  rho = policy / behaviour
    policy  = - mean_moving mean_valid A ln P                                      without a clip
    penalty =   mean_query mean_valid D
    total   = policy + kl_beta * penalty

    `mean_moving` is over queries with a non-zero advantage. Other queries count only in the penalty, so that the policy
    term does not shrink as more queries are solved. The policy gradient of a batch equals the gradient of the mean over
    all queries divided by `gradient_share`.

    Args:
        log_probs_BG: [B, G] log P(selection) under the trained policy.
        behaviour_log_probs_BG: [B, G] the same under the policy that sampled the selections; no gradient flows to it.
        advantages_BG: [B, G] A, a constant (`losses/advantages.py`).
        divergences_BG: [B, G] D of the trained policy from the reference (`losses.kl.selection_divergence`, or
            `losses.kl.divergence_of_draws`).
        valid_BG: [B, G] bool; a query without valid selections is omitted from every mean.
        clip_epsilon: eps, the clip range below 1, greater than 0; None for the plain score-function surrogate.
        clip_high: high, the clip range above 1; None for eps.
        kl_beta: weight of the penalty, at least 0.

    Source: Shao 2024 (GRPO)
    Source: Williams 1992 (REINFORCE)
    """
    advantages_BG = masked(advantages_BG.detach(), valid_BG)
    log_ratio_BG = masked(log_probs_BG - behaviour_log_probs_BG.detach(), valid_BG)
    moving_BG = valid_BG & (advantages_BG.abs().amax(dim=1, keepdim=True) > 0)
    if clip_epsilon is None:
        loss = score_function_surrogate(log_probs_BG, advantages_BG, moving_BG)
        surrogate = SurrogateTerms(loss=loss, clip_fraction=loss.new_zeros(()))
    else:
        surrogate = clipped_surrogate(log_ratio_BG, advantages_BG, moving_BG, clip_epsilon, clip_high)
    # The surrogate's share is of the moving queries; report it relative to all valid selections.
    surrogate = replace(
        surrogate, clip_fraction=surrogate.clip_fraction * moving_BG.sum() / valid_BG.sum().clamp(min=1)
    )
    penalty = mean_of_group_means(divergences_BG, valid_BG)
    return policy_terms(
        surrogate, penalty, log_ratio_BG=log_ratio_BG, advantages_BG=advantages_BG, valid_BG=valid_BG, kl_beta=kl_beta
    )
