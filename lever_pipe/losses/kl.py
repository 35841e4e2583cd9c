"""Distances between two policies: single-sample estimators, and the exact sum.

An estimator estimates KL(q || p) when its samples come from q. Here the log ratio is
log(policy / reference), so `k1` and `k3` estimate KL(reference || policy) on selections
drawn from the reference. Stored selections mix generators and are filtered by reward: over them
the mean of k3 is a penalty that keeps the policy near the reference, and no divergence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lever_pipe.base.shapes import require_shapes


def k1(log_ratio: Tensor) -> Tensor:
    """Return -log r of each element, r = p/q: unbiased for KL(q || p) on draws from q; signed.

    Args:
        log_ratio: log p - log q, any shape, nats.

    Source: Schulman 2020
    """
    return -log_ratio


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

    Raises:
        ShapeError: the shapes disagree.

    Source: Kullback 1951
    """
    require_shapes(
        ("logits_BGSK", "B G S K", logits_BGSK),
        ("reference_logits_BGSK", "B G S K", reference_logits_BGSK),
    )
    return kl_policy_to_reference(logits_BGSK, reference_logits_BGSK.detach()).sum(dim=-1)
