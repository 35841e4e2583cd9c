"""Policy optimisation on selections that the policy itself has drawn, with an exact penalty."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from lever_pipe.base.shapes import require_shapes
from lever_pipe.losses.reduction import masked, mean_of_group_means
from lever_pipe.losses.surrogate import (
    PolicyTerms,
    SurrogateTerms,
    clipped_surrogate,
    policy_terms,
    score_function_surrogate,
)


def on_policy_terms(
    *,
    log_probs: Tensor,
    behaviour_log_probs: Tensor,
    advantages: Tensor,
    divergences: Tensor,
    valid: Tensor,
    clip_epsilon: float | None,
    kl_beta: float,
) -> PolicyTerms:
    """Return the loss of a batch of drawn groups and what there is to know about it.

    policy  = - mean_moving mean_valid min(rho A, clip(rho, 1 - eps, 1 + eps) A),  rho = policy / behaviour
    policy  = - mean_moving mean_valid A ln P                                      without a clip
    penalty =   mean_query mean_valid D
    total   = policy + kl_beta * penalty

    A query whose advantages are all 0 is skipped: it is left out of the mean of the policy term, which therefore
    does not shrink as more queries are solved, and stays in the penalty. Per batch the policy gradient is that of the
    mean over all queries divided by `gradient_share`.

    Args:
        log_probs: [B, G] log P(selection) under the trained policy.
        behaviour_log_probs: [B, G] the same under the policy that drew the selections; no gradient flows to it.
        advantages: [B, G] A, a constant (`losses/advantages.py`).
        divergences: [B, G] D of the trained policy from the reference (`losses.kl.selection_divergence`).
        valid: [B, G] bool; a query without valid selections is left out of every mean.
        clip_epsilon: half-width of the trust region, greater than 0; None for the plain score-function surrogate.
        kl_beta: weight of the penalty, at least 0.

    Raises:
        ShapeError: the shapes disagree.

    Source: Shao 2024 (GRPO)
    Source: Williams 1992 (REINFORCE)
    """
    require_shapes(
        ("log_probs", "B G", log_probs),
        ("behaviour_log_probs", "B G", behaviour_log_probs),
        ("advantages", "B G", advantages),
        ("divergences", "B G", divergences),
        ("valid", "B G", valid),
    )
    advantages = masked(advantages.detach(), valid)
    log_ratio = masked(log_probs - behaviour_log_probs.detach(), valid)
    moving = valid & (advantages.abs().amax(dim=1, keepdim=True) > 0)
    if clip_epsilon is None:
        loss = score_function_surrogate(log_probs, advantages, moving)
        surrogate = SurrogateTerms(loss=loss, clip_fraction=loss.new_zeros(()))
    else:
        surrogate = clipped_surrogate(log_ratio, advantages, moving, clip_epsilon)
    surrogate = replace(surrogate, clip_fraction=surrogate.clip_fraction * moving.sum() / valid.sum().clamp(min=1))
    penalty = mean_of_group_means(divergences, valid)
    return policy_terms(surrogate, penalty, log_ratio=log_ratio, advantages=advantages, valid=valid, kl_beta=kl_beta)
