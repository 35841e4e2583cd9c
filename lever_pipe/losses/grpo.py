"""Group-relative policy optimisation: the clipped surrogate plus a penalty against a reference."""

from __future__ import annotations

from torch import Tensor

from lever_pipe.base.shapes import require_shapes
from lever_pipe.losses.kl import reference_penalty
from lever_pipe.losses.reduction import masked
from lever_pipe.losses.surrogate import PolicyTerms, clipped_surrogate, policy_terms


def grpo_terms(
    *,
    log_probs: Tensor,
    reference_log_probs: Tensor,
    advantages: Tensor,
    valid: Tensor,
    clip_epsilon: float,
    kl_beta: float,
    behaviour_log_probs: Tensor | None = None,
) -> PolicyTerms:
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
    return policy_terms(surrogate, penalty, log_ratio=log_ratio, advantages=advantages, valid=valid, kl_beta=kl_beta)


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
