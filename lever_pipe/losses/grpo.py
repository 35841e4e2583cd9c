"""Group-relative policy optimisation: the clipped surrogate plus a penalty against a reference."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lever_pipe.base.shapes import require_shapes
from lever_pipe.losses.kl import reference_penalty
from lever_pipe.losses.reduction import group_standard_deviations, masked, mean_of_group_means, mean_over_queries
from lever_pipe.losses.surrogate import clipped_surrogate


@dataclass(frozen=True, slots=True)
class GrpoTerms:
    """Scalars of one step; `total = policy + kl_beta * penalty`, only these three have gradients.

    Means are over a query's valid selections, then over queries; `clip_fraction` counts all selections alike.
    """

    policy: Tensor
    """Clipped surrogate; lower is better."""
    penalty: Tensor
    """Mean k3 against the reference, at least 0, before weighting."""
    total: Tensor
    """What is minimised."""
    mean_ratio: Tensor
    """Mean of policy / behaviour; 1 before the first step."""
    clip_fraction: Tensor
    """Share of valid selections whose gradient the clip cuts."""
    mean_advantage: Tensor
    """0 by construction unless an advantage is clamped; to be asserted, not plotted."""
    std_advantage: Tensor
    """Mean over queries of the unbiased standard deviation of A within the group."""
    max_advantage: Tensor
    """Mean over queries of the largest |A| of the group."""
    gradient_share: Tensor
    """Share of queries with any non-zero advantage: the only ones that move the policy term."""


def grpo_terms(
    *,
    log_probs: Tensor,
    reference_log_probs: Tensor,
    advantages: Tensor,
    valid: Tensor,
    clip_epsilon: float,
    kl_beta: float,
    behaviour_log_probs: Tensor | None = None,
) -> GrpoTerms:
    """Return the loss of a batch of groups and what there is to know about it.

    policy  = - mean_query mean_valid min(rho A, clip(rho, 1 - eps, 1 + eps) A)
    penalty =   mean_query mean_valid (sigma - 1 - ln sigma)
    total   = policy + kl_beta * penalty

    with rho = policy / behaviour and sigma = policy / reference. In the published objective the
    behaviour is taken to be the reference (rho = sigma), although the stored selections come from
    elsewhere: there is no importance correction. On-policy training passes the log-probabilities
    under which the selections were drawn.

    Args:
        log_probs: [B, G] log P(selection) under the trained policy.
        reference_log_probs: [B, G] the same under the frozen reference.
        advantages: [B, G] from `group_advantages`.
        valid: [B, G] bool; a query without valid selections is left out of every mean.
        clip_epsilon: half-width of the trust region.
        kl_beta: weight of the penalty, at least 0.
        behaviour_log_probs: [B, G] log P under the policy that drew the selections; None takes
            the reference for it.

    Raises:
        ShapeError: the shapes disagree.

    Source: Shao 2024 (GRPO)
    """
    behaviour = reference_log_probs if behaviour_log_probs is None else behaviour_log_probs
    require_shapes(
        ("log_probs", "B G", log_probs),
        ("reference_log_probs", "B G", reference_log_probs),
        ("behaviour_log_probs", "B G", behaviour),
        ("advantages", "B G", advantages),
        ("valid", "B G", valid),
    )
    log_ratio = masked(log_probs - behaviour.detach(), valid)
    advantages = masked(advantages.detach(), valid)
    surrogate = clipped_surrogate(log_ratio, advantages, valid, clip_epsilon)
    penalty = reference_penalty(log_probs, reference_log_probs, valid)
    largest_B = advantages.abs().amax(dim=1)
    return GrpoTerms(
        policy=surrogate.loss,
        penalty=penalty,
        total=surrogate.loss + kl_beta * penalty,
        mean_ratio=mean_of_group_means(log_ratio.detach().exp(), valid),
        clip_fraction=surrogate.clip_fraction,
        mean_advantage=mean_of_group_means(advantages, valid),
        std_advantage=mean_over_queries(group_standard_deviations(advantages, valid), valid),
        max_advantage=mean_over_queries(largest_B, valid),
        gradient_share=mean_over_queries((largest_B > 0).to(advantages.dtype), valid),
    )


def adapt_kl_beta(
    kl_beta: float,
    penalty: float,
    *,
    low: float,
    high: float,
    factor: float,
    minimum: float,
    maximum: float,
) -> float:
    """Return the penalty weight for the next step, from the penalty of this one.

    beta * factor if penalty > high; beta / factor if penalty < low; else unchanged; then limited
    to [minimum, maximum].

    Args:
        kl_beta: weight of this step.
        penalty: penalty of this step before weighting, nats.
        low: below it the weight falls.
        high: above it the weight rises.
        factor: by how much, greater than 1.
        minimum: lower limit of the weight.
        maximum: upper limit of the weight.

    Source: Lever-Plus published code
    """
    if penalty > high:
        kl_beta = kl_beta * factor
    elif penalty < low:
        kl_beta = kl_beta / factor
    return min(max(kl_beta, minimum), maximum)
