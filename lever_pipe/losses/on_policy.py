"""Objective of GRPO, or of REINFORCE, on selections that the policy draws."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from lever_pipe.base.shapes import shaped
from lever_pipe.losses.reduction import masked, mean_of_group_means
from lever_pipe.losses.surrogate import PolicyTerms, SurrogateTerms, clipped_surrogate, policy_terms


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
