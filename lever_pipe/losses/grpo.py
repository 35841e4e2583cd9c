"""Policy-gradient losses over groups of selections, one log-probability per whole selection.

`grpo_terms` is the published objective on stored selections. `on_policy_terms` is the objective on samples of the
policy itself. Both are the sum of a policy-gradient surrogate and a weighted distance from the reference.
"""

from __future__ import annotations

from torch import Tensor

from lever_pipe.base.shapes import shaped
from lever_pipe.losses.kl import k3
from lever_pipe.losses.reduction import masked, mean_of_group_means
from lever_pipe.losses.surrogate import PolicyTerms, clipped_surrogate, policy_terms


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
