"""Group-relative policy optimisation on stored selections: the clipped surrogate plus a penalty against a reference."""

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
) -> PolicyTerms:
    """Return the loss of a batch of stored groups and what there is to know about it.

    policy  = - mean_query mean_valid min(rho A, clip(rho, 1 - eps, 1 + eps) A),  rho = policy / reference
    penalty =   mean_query mean_valid (rho - 1 - ln rho)
    total   = policy + kl_beta * penalty

    As published the behaviour is taken to be the reference, although the stored selections come from elsewhere: there
    is no importance correction.

    Args:
        log_probs: [B, G] log P(selection) under the trained policy.
        reference_log_probs: [B, G] the same under the frozen reference; no gradient flows to it.
        advantages: [B, G] A, a constant (`losses/advantages.py`).
        valid: [B, G] bool; a query without valid selections is left out of every mean.
        clip_epsilon: half-width of the trust region.
        kl_beta: weight of the penalty, at least 0.

    Raises:
        ShapeError: the shapes disagree.

    Source: Shao 2024 (GRPO)
    """
    require_shapes(
        ("log_probs", "B G", log_probs),
        ("reference_log_probs", "B G", reference_log_probs),
        ("advantages", "B G", advantages),
        ("valid", "B G", valid),
    )
    log_ratio = masked(log_probs - reference_log_probs.detach(), valid)
    advantages = masked(advantages.detach(), valid)
    surrogate = clipped_surrogate(log_ratio, advantages, valid, clip_epsilon)
    penalty = reference_penalty(log_probs, reference_log_probs, valid)
    return policy_terms(surrogate, penalty, log_ratio=log_ratio, advantages=advantages, valid=valid, kl_beta=kl_beta)
