"""Policy-gradient losses over groups of selections, one log-probability per whole selection.

`grpo_terms` is the published objective on stored selections, `on_policy_terms` that on selections which the policy has
drawn itself. Both are a surrogate, whose gradient is that of a policy, plus a weighted distance from the reference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lever_pipe.base.shapes import require_shapes
from lever_pipe.losses.kl import k3
from lever_pipe.losses.reduction import group_standard_deviations, masked, mean_of_group_means, mean_over_queries


@dataclass(frozen=True, slots=True)
class SurrogateTerms:
    """The clipped surrogate and how often its clip cuts the gradient."""

    loss: Tensor
    """[] lower is better."""
    clip_fraction: Tensor
    """[] share of valid selections whose gradient is cut, in [0, 1], detached."""


def clipped_surrogate(
    log_ratio: Tensor, advantages: Tensor, valid: Tensor, clip_epsilon: float, clip_high: float | None = None
) -> SurrogateTerms:
    """Return the negated clipped objective, and the share of selections that the clip silences.

    loss = - mean_query mean_valid min(rho A, clip(rho, 1 - eps, 1 + high) A),  rho = exp(log_ratio)

    A selection is clipped when the clipped branch is strictly the smaller: rho > 1 + high with
    A > 0, or rho < 1 - eps with A < 0. The other two far sides keep their gradient, which leads
    back into the trust region. A = 0 never counts as clipped.

    Args:
        log_ratio: [B, G] log P(selection) under the policy minus that under the behaviour.
        advantages: [B, G] A, a constant: no gradient flows to it.
        valid: [B, G] bool.
        clip_epsilon: how far rho may fall below 1, greater than 0.
        clip_high: how far it may rise above 1; None for equally far.

    Source: Schulman 2017 (PPO)
    Source: Yu 2025 (DAPO, clip-higher)
    """
    advantages = masked(advantages.detach(), valid)
    ratios = masked(log_ratio, valid).exp()
    unclipped = ratios * advantages
    clipped = ratios.clamp(1 - clip_epsilon, 1 + (clip_epsilon if clip_high is None else clip_high)) * advantages
    n_valid = valid.sum().clamp(min=1).to(ratios.dtype)
    return SurrogateTerms(
        loss=-mean_of_group_means(torch.minimum(unclipped, clipped), valid),
        clip_fraction=(clipped < unclipped).detach().sum() / n_valid,
    )


def score_function_surrogate(log_probs: Tensor, advantages: Tensor, valid: Tensor) -> Tensor:
    """Return the loss whose gradient is the negated score-function estimate, [].

    loss = - mean_query mean_valid A log P

    Its value is no measure of progress. No ratio corrects for draws of another policy: its gradient is that of the
    expected reward on draws of this policy alone.

    Args:
        log_probs: [B, G] log P(selection) under the policy.
        advantages: [B, G] A, a constant: no gradient flows to it.
        valid: [B, G] bool.

    Source: Williams 1992 (REINFORCE)
    """
    return -mean_of_group_means(masked(advantages.detach(), valid) * masked(log_probs, valid), valid)


@dataclass(frozen=True, slots=True)
class PolicyTerms:
    """Scalars of one step; `total = policy + kl_beta * penalty`, only these three have gradients.

    Means are over a query's valid selections, then over queries: for `policy` over those that its surrogate counts, for
    all others over every query with a valid selection. `clip_fraction` counts all selections alike.
    """

    policy: Tensor
    """Surrogate; lower is better."""
    penalty: Tensor
    """Mean distance from the reference, nats a selection, before weighting."""
    total: Tensor
    """What is minimised."""
    mean_ratio: Tensor
    """Mean of policy / behaviour; 1 before the first step on a batch."""
    clip_fraction: Tensor
    """Share of valid selections whose gradient the clip cuts; 0 without a clip."""
    mean_advantage: Tensor
    """0 by construction for advantages within the group, unless one is clamped."""
    std_advantage: Tensor
    """Mean over queries of the unbiased standard deviation of A within the group."""
    max_advantage: Tensor
    """Mean over queries of the largest |A| of the group."""
    gradient_share: Tensor
    """Share of queries with any non-zero advantage: the only ones that move the policy term."""


def policy_terms(
    surrogate: SurrogateTerms, penalty: Tensor, *, log_ratio: Tensor, advantages: Tensor, valid: Tensor, kl_beta: float
) -> PolicyTerms:
    """Return the loss of a batch of groups and what there is to know about it.

    total = policy + kl_beta * penalty

    Args:
        surrogate: the policy term, [], and the share that its clip cuts.
        penalty: [] the distance from the reference.
        log_ratio: [B, G] log of policy / behaviour, 0 where invalid.
        advantages: [B, G] A, a constant, 0 where invalid.
        valid: [B, G] bool.
        kl_beta: weight of the penalty, at least 0.

    Source: Shao 2024 (GRPO)
    """
    largest_B = advantages.abs().amax(dim=1)
    return PolicyTerms(
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
    is no importance correction, and the penalty, 0 at identity, estimates neither direction of the KL. It would
    estimate KL(reference || policy) on selections drawn from the reference.

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
    penalty = mean_of_group_means(k3(log_ratio), valid)
    return policy_terms(surrogate, penalty, log_ratio=log_ratio, advantages=advantages, valid=valid, kl_beta=kl_beta)


def on_policy_terms(
    *,
    log_probs: Tensor,
    behaviour_log_probs: Tensor,
    advantages: Tensor,
    divergences: Tensor,
    valid: Tensor,
    clip_epsilon: float | None,
    clip_high: float | None = None,
    kl_beta: float,
) -> PolicyTerms:
    """Return the loss of a batch of drawn groups and what there is to know about it.

    policy  = - mean_moving mean_valid min(rho A, clip(rho, 1 - eps, 1 + high) A),  rho = policy / behaviour
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
        divergences: [B, G] D of the trained policy from the reference (`losses.kl.selection_divergence`, or
            `losses.kl.divergence_of_draws`).
        valid: [B, G] bool; a query without valid selections is left out of every mean.
        clip_epsilon: how far rho may fall below 1, greater than 0; None for the plain score-function surrogate.
        clip_high: how far it may rise above 1; None for equally far.
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
        surrogate = clipped_surrogate(log_ratio, advantages, moving, clip_epsilon, clip_high)
    surrogate = replace(surrogate, clip_fraction=surrogate.clip_fraction * moving.sum() / valid.sum().clamp(min=1))
    penalty = mean_of_group_means(divergences, valid)
    return policy_terms(surrogate, penalty, log_ratio=log_ratio, advantages=advantages, valid=valid, kl_beta=kl_beta)
