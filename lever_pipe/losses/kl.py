"""Distances between two policies: single-sample estimators, and the exact sum.

An estimator estimates KL(q || p) when its samples come from q. Here the log ratio is
log(policy / reference), so `k1` and `k3` estimate KL(reference || policy) on selections
drawn from the reference. Stored selections mix generators and are filtered by reward: over them
the mean of k3 is a penalty that keeps the policy near the reference, and no divergence.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lever_pipe.base.shapes import shaped
from lever_pipe.losses.advantages import leave_one_out_advantages
from lever_pipe.losses.reduction import masked

KlForm = Literal["k3_loss", "k2_loss", "k1_reward"]
"""How KL(policy || reference) pulls on a policy by its own draws: by the gradient of a loss, or as part of a reward."""


def k1(log_ratio: Tensor) -> Tensor:
    """Return -log r of each element, r = p/q: unbiased for KL(q || p) on draws from q; signed.

    Args:
        log_ratio: log p - log q, any shape, nats.

    Source: Schulman 2020
    """
    return -log_ratio


def k2(log_ratio: Tensor) -> Tensor:
    """Return (log r)^2 / 2 of each element, r = p/q: biased for KL(q || p), symmetric, at least 0.

    On draws from q its gradient by the parameters of q is (log q - log p) grad log q, whose mean is the gradient of
    KL(q || p). That of k3 is (1 - r) grad log q, whose mean is the gradient of KL(p || q), the other direction.

    Args:
        log_ratio: log p - log q, any shape, nats.

    Source: Schulman 2020
    Source: Shah 2025 (comedy of estimators)
    """
    return log_ratio**2 / 2


def k3(log_ratio: Tensor) -> Tensor:
    """Return r - 1 - log r of each element: unbiased for KL(q || p) on draws from q, at least 0.

    Written with expm1, which keeps the digits that `exp(x) - 1` loses near r = 1.

    Args:
        log_ratio: log p - log q, any shape, nats.

    Source: Schulman 2020
    """
    return torch.expm1(log_ratio) - log_ratio


def kl_policy_to_reference(logits: Tensor, reference_logits: Tensor) -> Tensor:
    """Return the exact KL(policy || reference) of two categoricals over the last dimension.

    sum_k p_k (ln p_k - ln r_k),  p = softmax(logits), r = softmax(reference_logits)

    A step has only K outcomes, so nothing needs to be sampled. The direction is that of the
    expectation: under the policy, not under the reference.

    Args:
        logits: [..., K] logits of the policy; finite (a chosen candidate holds `MASKED_SCORE`).
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

    Every step is enumerated at the prefix that the selection visits. By the chain rule the mean of D over selections
    that the policy draws is the exact KL between the two laws of whole selections; over selections drawn by another
    policy it is the same sum at that policy's prefixes.

    The gradient goes through the step distributions only, not through the law of the visited prefixes: it is the
    whole gradient of that KL for one shot, and beyond one leaves out how early picks change which later steps are
    met. It is 0 where the two policies agree at all visited prefixes.

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
    """Return a distance from the reference of each draw of a group, [B, G], by the draw's own probabilities; 0 padded.

    k3_loss: e^d - 1 - d,  k2_loss: d^2 / 2,  d = ln reference - ln policy
    k1_reward: K + max(c rho, c clip(rho, 1 - eps, 1 + high)) - c,  rho = policy / behaviour

    with K = ln behaviour - ln reference a constant, and c what K is above the mean of the group's other draws. Where
    the policy has drawn itself (rho = 1) the value of the last is k1, unbiased for KL(policy || reference), and its
    gradient c grad ln policy, that of a reward -K: unbiased, too, for two draws at least. So is that of k2. The
    gradient of k3 is in the mean that of KL(reference || policy).

    Args:
        log_probs_BG: [B, G] ln P(draw) under the trained policy; the only input with a gradient.
        behaviour_log_probs_BG: [B, G] the same under the policy that drew.
        reference_log_probs_BG: [B, G] the same under the reference.
        valid_BG: [B, G] bool.
        form: which of the three.
        clip_epsilon: how far rho may fall below 1, `k1_reward` only; None for no clip.
        clip_high: how far it may rise above 1; None for equally far.

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
    return costs_BG + pulled_BG - above_BG
