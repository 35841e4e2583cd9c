"""Distances between two policies: single-sample estimators, and the exact sum.

The estimators estimate KL(q || p) on samples of q. With the log ratio log(policy / reference), `k1` and `k3`
estimate KL(reference || policy) on samples of the reference. Stored selections are from several generators and
filtered by reward. On these, the mean of k3 is a penalty that keeps the policy near the reference, but not a
divergence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lever_pipe.base.records import KlForm
from lever_pipe.base.shapes import shaped
from lever_pipe.losses.advantages import leave_one_out_advantages
from lever_pipe.losses.reduction import masked


def k1(log_ratio: Tensor) -> Tensor:
    """Return -log r of each element, r = p/q: an unbiased estimate of KL(q || p) on samples of q; signed.

    Args:
        log_ratio: log p - log q, any shape, nats.

    Source: Schulman 2020
    """
    return -log_ratio


def k2(log_ratio: Tensor) -> Tensor:
    """Return (log r)^2 / 2 of each element, r = p/q: a biased estimate of KL(q || p), symmetric, at least 0.

    On samples of q, its gradient in the parameters of q is (log q - log p) grad log q, with the gradient of KL(q || p)
    as its mean. The gradient of k3 is (1 - r) grad log q, with the gradient of KL(p || q) as its mean, the other
    direction.

    Args:
        log_ratio: log p - log q, any shape, nats.

    Source: Schulman 2020
    Source: Shah 2025 (comedy of estimators)
    """
    return log_ratio**2 / 2


def k3(log_ratio: Tensor) -> Tensor:
    """Return r - 1 - log r of each element: an unbiased estimate of KL(q || p) on samples of q, at least 0.

    `expm1` is precise near r = 1, where `exp(x) - 1` loses digits.

    Args:
        log_ratio: log p - log q, any shape, nats.

    Source: Schulman 2020
    """
    return torch.expm1(log_ratio) - log_ratio


def kl_policy_to_reference(logits: Tensor, reference_logits: Tensor) -> Tensor:
    """Return the exact KL(policy || reference) of two categoricals over the last dimension.

    sum_k p_k (ln p_k - ln r_k),  p = softmax(logits), r = softmax(reference_logits)

    A step has only K outcomes, so the sum is exact, without sampling. The expectation is under the policy, not under
    the reference.

    Args:
        logits: [..., K] logits of the policy; finite (`MASKED_SCORE` for a chosen candidate).
        reference_logits: [..., K] logits of the reference, equally masked.

    Returns:
        [...] nats, at least 0 up to rounding; 0 where the two agree up to a constant.

    Raises:
        ValueError: the two shapes differ.

    Source: Kullback 1951
    """
    if logits.shape != reference_logits.shape:
        raise ValueError(
            f"logits and reference_logits must have one shape, got {list(logits.shape)}"
            f" and {list(reference_logits.shape)}"
        )
    return divergence_of_logs(logits.log_softmax(dim=-1), reference_logits.log_softmax(dim=-1))


def divergence_of_logs(log_p: Tensor, log_r: Tensor) -> Tensor:
    """Return sum_k p_k (ln p_k - ln r_k) over the last dimension, [...], of log-probabilities of one shape.

    Source: Kullback 1951
    """
    return (log_p.exp() * (log_p - log_r)).sum(dim=-1)


@shaped
def selection_divergence(logits_BGSK: Tensor, reference_logits_BGSK: Tensor) -> Tensor:
    """Return the exact KL(policy || reference) of the steps of each selection, summed, [B, G].

    D(tau) = sum_s KL(policy(. | tau_1 .. tau_(s-1)) || reference(. | tau_1 .. tau_(s-1)))

    The KL of every step is exact, at the selection's own prefix. By the chain rule, the mean of D over samples of the
    policy is the exact KL between the two distributions of whole selections. Over samples of another policy it is the
    same sum at the prefixes of that policy.

    The gradient flows only through the distributions of the steps, not through the distribution of the prefixes. For
    one shot this is the whole gradient of the KL. For several shots it omits the effect of early picks on the later
    prefixes. It is 0 if the two policies are equal at all visited prefixes.

    Args:
        logits_BGSK: [B, G, S, K] masked logits of each step under the policy (`losses.sequence.step_logits`).
        reference_logits_BGSK: [B, G, S, K] the same under the reference; no gradient flows to it.

    Returns:
        [B, G] nats, at least 0 up to rounding.

    Source: Kullback 1951
    """
    return kl_policy_to_reference(logits_BGSK, reference_logits_BGSK.detach()).sum(dim=-1)


@shaped
def divergence_of_draws(
    log_probs_BG: Tensor,
    behaviour_log_probs_BG: Tensor,
    reference_log_probs_BG: Tensor,
    valid_BG: Tensor,
    *,
    form: KlForm,
    clip_epsilon: float | None,
    clip_high: float | None = None,
) -> Tensor:
    """Return an estimate of the distance from the reference for each sample of a group, [B, G]; 0 at padding.

    k3_loss: e^d - 1 - d,  k2_loss: d^2 / 2,  d = ln reference - ln policy
    k1_reward: K + max(c rho, c clip(rho, 1 - eps, 1 + high)) - c,  rho = policy / behaviour

    K = ln behaviour - ln reference is a constant, and c is K minus the mean K of the group's other samples.

    For samples of the policy itself (rho = 1), the value of k1_reward is k1, an unbiased estimate of KL(policy ||
    reference). Its gradient is c grad ln policy, the policy gradient of a reward -K: also unbiased, for at least two
    samples. The gradient of k2 is unbiased too. The mean gradient of k3 is the gradient of KL(reference || policy).

    Args:
        log_probs_BG: [B, G] ln P(sample) under the trained policy; the only input with a gradient.
        behaviour_log_probs_BG: [B, G] the same under the policy that sampled.
        reference_log_probs_BG: [B, G] the same under the reference.
        valid_BG: [B, G] bool.
        form: one of the three forms.
        clip_epsilon: eps, the clip range below 1, `k1_reward` only; None for no clip.
        clip_high: high, the clip range above 1; None for eps.

    Source: Schulman 2020
    Source: Shah 2025 (comedy of estimators)
    """
    if form != "k1_reward":
        log_ratio_BG = masked(reference_log_probs_BG.detach() - log_probs_BG, valid_BG)
        return k3(log_ratio_BG) if form == "k3_loss" else k2(log_ratio_BG)
    costs_BG = masked((behaviour_log_probs_BG - reference_log_probs_BG).detach(), valid_BG)
    above_BG = leave_one_out_advantages(costs_BG, valid_BG)
    ratios_BG = masked(log_probs_BG - behaviour_log_probs_BG.detach(), valid_BG).exp()
    pulled_BG = above_BG * ratios_BG
    if clip_epsilon is not None:
        bounded_BG = ratios_BG.clamp(1 - clip_epsilon, 1 + (clip_epsilon if clip_high is None else clip_high))
        pulled_BG = torch.maximum(pulled_BG, above_BG * bounded_BG)
    # At rho = 1 the last two terms cancel: the value is K, the gradient comes from the ratio.
    return costs_BG + pulled_BG - above_BG
