"""The loss of a tool-calling agent, with one term per token.

B  episodes of a micro-batch          T  token positions          V  vocabulary

Every mean is over the agent's tokens of the whole mini-batch: each micro-batch divides its sum by the given number of
these tokens. Loss and gradient therefore do not depend on the division into micro-batches and processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lever_pipe.base.records import KlForm
from lever_pipe.base.shapes import shaped
from lever_pipe.losses.kl import k1, k2, k3
from lever_pipe.losses.reduction import masked

LARGEST_PENALTY = 10.0
"""Limit of one token's k3, as published; at the limit the token has no gradient."""
_LARGEST_LOG_RATIO = 20.0
"""Limit of log ratios before `exp`, whose overflow would make a gradient NaN. Every term is constant beyond the limit
(k3 at its own limit, the surrogate clipped), so it changes no value or gradient."""


@shaped
def mean_over_tokens(values_BT: Tensor, mask_BT: Tensor, n_tokens: int) -> Tensor:
    """Return this micro-batch's share of the mean over tokens, []: its masked sum / n_tokens.

    Args:
        values_BT: [B, T] one value per token; any value outside the mask.
        mask_BT: [B, T] bool, true for the tokens that count.
        n_tokens: number of these tokens in all micro-batches of all processes, at least 1.

    Raises:
        ValueError: n_tokens is less than 1.

    Source: this project
    """
    if n_tokens < 1:
        raise ValueError(f"n_tokens must be at least 1, got {n_tokens}")
    return masked(values_BT, mask_BT).sum() / n_tokens


class ReferenceDistances(NamedTuple):
    """Estimates of KL(policy || reference) from the policy's own tokens, nats per token."""

    k1: Tensor
    """[] unbiased, signed."""
    k2: Tensor
    """[] at least 0."""
    k3: Tensor
    """[] at least 0, each token limited to `LARGEST_PENALTY`."""


@shaped
def distances_to_reference(
    log_probs_BT: Tensor, reference_log_probs_BT: Tensor, mask_BT: Tensor, n_tokens: int
) -> ReferenceDistances:
    """Return this micro-batch's share of the mean distance to the reference.

    k1 = -d;  k2 = d^2 / 2;  k3 = min(e^d - 1 - d, 10),  d = reference - policy

    The gradient flows only through the policy's log-probabilities; the gradient of k3 is 0 for a token at the limit.

    Args:
        log_probs_BT: [B, T] log P(token) under the trained policy.
        reference_log_probs_BT: [B, T] the same under the frozen reference.
        mask_BT: [B, T] bool, true for the agent's tokens.
        n_tokens: agent tokens of the whole mini-batch.

    Raises:
        ValueError: n_tokens is less than 1.

    Source: Schulman 2020
    Source: UserRL published code
    """
    log_ratio_BT = masked(reference_log_probs_BT.detach().to(log_probs_BT) - log_probs_BT, mask_BT)
    bounded_BT = log_ratio_BT.clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
    return ReferenceDistances(
        k1=mean_over_tokens(k1(log_ratio_BT), mask_BT, n_tokens),
        k2=mean_over_tokens(k2(log_ratio_BT), mask_BT, n_tokens),
        k3=mean_over_tokens(k3(bounded_BT).clamp(max=LARGEST_PENALTY), mask_BT, n_tokens),
    )


@dataclass(frozen=True, slots=True)
class AgentTerms:
    """One micro-batch's share of a mini-batch; `total = policy + kl * penalty - entropy coefficient * entropy`.

    Shares add up over micro-batches and processes; combine `ratio_max` by the maximum. Only the first four have
    gradients.
    """

    policy: Tensor
    """[] dual-clipped surrogate; lower is better, but its value does not measure progress."""
    penalty: Tensor
    """[] distance to the reference in the form of the loss, before weighting; 0 without a reference."""
    entropy: Tensor
    """[] nats per token, before weighting; 0 without entropies."""
    total: Tensor
    """[] the loss to minimize."""
    clipped: Tensor
    """[] number of tokens without gradient because of the clip."""
    dual_clipped: Tensor
    """[] number of tokens without gradient because of the bound for negative advantages; disjoint from `clipped`."""
    ratio_max: Tensor
    """[] largest policy / behaviour, at most e^20; 0 without tokens."""
    ratio_sum: Tensor
    """[] sum of policy / behaviour over tokens."""


@shaped
def agent_terms(
    *,
    log_probs_BT: Tensor,
    behaviour_log_probs_BT: Tensor,
    reference_log_probs_BT: Tensor | None,
    entropies_BT: Tensor | None,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    n_tokens: int,
    clip_low: float,
    clip_high: float,
    dual_clip: float,
    kl: float,
    entropy: float,
    kl_form: KlForm = "k3_loss",
) -> AgentTerms:
    """Return a micro-batch's share of the loss and its statistics.

    policy  = sum_j L_j / n,  L = max(-A rho, -A clip(rho, 1 - low, 1 + high));  min(L, -dual_clip A) where A < 0
    penalty = sum_j k3_j / n, or k2_j with kl_form k2_loss  (`distances_to_reference`)
    total   = policy + kl penalty - entropy sum_j H_j / n

    with rho = policy / behaviour and n = n_tokens. With kl_form k1_reward, the advantages already contain the KL
    (`losses.credit.kl_rewards`): the penalty is reported, but not part of the total.

    Values outside the mask, even infinity and NaN, affect neither a value nor a gradient. Tokens with A = 0 have no
    policy gradient.

    Args:
        log_probs_BT: [B, T] log P(token) under the trained policy; only this input and H have gradients.
        behaviour_log_probs_BT: [B, T] the same under the policy that sampled the tokens.
        reference_log_probs_BT: [B, T] the same under the frozen reference; None only if kl is 0.
        entropies_BT: [B, T] H of the trained policy; None only if entropy is 0.
        advantages_BT: [B, T] A, a constant (`losses/credit.py`).
        mask_BT: [B, T] bool, true for the tokens that the agent sampled.
        n_tokens: number of these tokens in all micro-batches of all processes. If gradients are averaged over
            processes instead of summed, the caller multiplies the total by the number of processes.
        clip_low: low, the clip range below 1.
        clip_high: high, the clip range above 1.
        dual_clip: bound on L in multiples of -A where A < 0, greater than 1; infinity for none.
        kl: weight of the penalty.
        entropy: weight of the entropy bonus.
        kl_form: form of the penalty.

    Raises:
        ValueError: n_tokens is less than 1, or a term has a weight but no input.

    Source: Schulman 2017 (PPO)
    Source: Ye 2020 (dual clip)
    Source: UserRL published code
    """
    if kl and reference_log_probs_BT is None:
        raise ValueError(f"reference_log_probs_BT must be given where kl={kl} is not 0, got None")
    if entropy and entropies_BT is None:
        raise ValueError(f"entropies_BT must be given where entropy={entropy} is not 0, got None")
    log_ratio_BT = masked(log_probs_BT - behaviour_log_probs_BT.detach().to(log_probs_BT), mask_BT)
    ratios_BT = log_ratio_BT.clamp(max=_LARGEST_LOG_RATIO).exp()  # a small ratio cannot overflow
    losses = _dual_clipped_losses(
        ratios_BT, masked(advantages_BT.detach().to(log_probs_BT), mask_BT), clip_low, clip_high, dual_clip
    )
    policy = mean_over_tokens(losses.loss, mask_BT, n_tokens)
    penalty, bonus, total = log_probs_BT.new_zeros(()), log_probs_BT.new_zeros(()), policy
    if reference_log_probs_BT is not None:
        distances = distances_to_reference(log_probs_BT, reference_log_probs_BT, mask_BT, n_tokens)
        penalty = distances.k2 if kl_form == "k2_loss" else distances.k3
    if entropies_BT is not None:
        bonus = mean_over_tokens(entropies_BT, mask_BT, n_tokens)
    if kl and kl_form != "k1_reward":
        total = total + kl * penalty
    if entropy:
        total = total - entropy * bonus
    counted_BT = masked(ratios_BT.detach(), mask_BT)
    return AgentTerms(
        policy=policy,
        penalty=penalty,
        entropy=bonus,
        total=total,
        clipped=losses.clipped.sum(),
        dual_clipped=losses.dual_clipped.sum(),
        ratio_max=counted_BT.max() if counted_BT.numel() else counted_BT.sum(),
        ratio_sum=counted_BT.sum(),
    )


@shaped
def behaviour_of_sequences(log_probs_BT: Tensor, behaviour_log_probs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return behavior log-probabilities that give every token the mean ratio of its row, [B, T].

    b_j = log p_j - s,  s = sum_i (log p_i - log b_i) / n  over the n tokens of the row; a constant without gradient

    In `agent_terms`, rho_j = p_j / exp(b_j) is then e^s at every token, with the gradient e^s grad log p_j. Each token
    keeps its own advantage (GSPO-token). 0 outside the mask.

    Args:
        log_probs_BT: [B, T] log P(token) under the trained policy; one episode per row.
        behaviour_log_probs_BT: [B, T] the same under the policy that sampled the tokens.
        mask_BT: [B, T] bool, true for the tokens that the agent sampled.

    Source: Zheng 2025 (GSPO)
    """
    log_probs_BT = log_probs_BT.detach()
    log_ratio_BT = masked(log_probs_BT - behaviour_log_probs_BT.to(log_probs_BT), mask_BT)
    mean_B1 = log_ratio_BT.sum(dim=1, keepdim=True) / mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
    return masked(log_probs_BT - mean_B1, mask_BT)


class _TokenLosses(NamedTuple):
    """Losses and clip masks of tokens, [B, T] each."""

    loss: Tensor
    clipped: Tensor
    dual_clipped: Tensor


def _dual_clipped_losses(
    ratios_BT: Tensor, advantages_BT: Tensor, clip_low: float, clip_high: float, dual_clip: float
) -> _TokenLosses:
    plain_BT = -advantages_BT * ratios_BT
    limited_BT = -advantages_BT * ratios_BT.clamp(1 - clip_low, 1 + clip_high)
    clipped_BT = torch.maximum(plain_BT, limited_BT)
    negative_BT = advantages_BT < 0
    # For a negative advantage, a large ratio would make the loss unbounded; the clip does not limit this side.
    bound_BT = masked(-dual_clip * advantages_BT, negative_BT, torch.inf)
    return _TokenLosses(
        loss=torch.minimum(clipped_BT, bound_BT),
        clipped=(limited_BT > plain_BT).detach(),
        dual_clipped=(clipped_BT > bound_BT).detach(),
    )
