"""What a token's loss needs of its row of logits, without a second copy of all logits.

Rows over a large vocabulary are what fills a device: 9,000 tokens of 150,000 logits take 2.7 GB in bfloat16, and
plain autograd keeps two to three float32 copies of them. Here each row is taken to float32 a few positions at a time,
in the forward pass and again in the backward one; only the given logits and their gradient are ever whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from lever_pipe.base.shapes import shaped

_CHUNK = 2**24
"""Logits that are held in float32 at one time: 64 MiB."""


def _chunks(logits_BTV: Tensor) -> Iterator[slice]:
    """Yield slices of T; the result of a position does not depend on them."""
    n_rows, n_positions, n_words = logits_BTV.shape
    width = max(1, _CHUNK // max(1, n_rows * n_words))
    for start in range(0, max(1, n_positions), width):  # one empty slice of no positions
        yield slice(start, start + width)


def _log_softmax(logits_BTV: Tensor, chunk: slice, temperature: float) -> Tensor:
    logits = logits_BTV[:, chunk]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return (logits if temperature == 1 else logits / temperature).log_softmax(dim=-1)


def _without_idle_rows(gradients: Tensor, upstream: Tensor) -> Tensor:
    """Return `gradients` with exact zeros where the gradient of the row's result is 0, nan logits included."""
    return gradients.masked_fill_((upstream == 0)[..., None], 0.0)


class _PickedLogProbs(torch.autograd.Function):
    """log softmax(z)[target] of each row; its derivative by z_i is [i = target] - softmax(z)_i."""

    @staticmethod
    def forward(ctx: Any, logits_BTV: Tensor, targets_BT: Tensor, temperature: float) -> Tensor:
        """Return [B, T] in float32, or float64 for float64 logits."""
        ctx.save_for_backward(logits_BTV, targets_BT)
        ctx.temperature = temperature
        picked = [
            _log_softmax(logits_BTV, chunk, temperature).gather(-1, targets_BT[:, chunk, None])[..., 0]
            for chunk in _chunks(logits_BTV)
        ]
        return torch.cat(picked, dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of the logits in their own precision."""
        logits_BTV, targets_BT = ctx.saved_tensors
        result_BTV = torch.empty_like(logits_BTV)
        for chunk in _chunks(logits_BTV):
            upstream = gradients[0][:, chunk]
            parts = _log_softmax(logits_BTV, chunk, ctx.temperature).exp_().mul_(-upstream[..., None])
            parts.scatter_add_(-1, targets_BT[:, chunk, None], upstream[..., None])
            result_BTV[:, chunk] = _without_idle_rows(parts, upstream).div_(ctx.temperature)
        return result_BTV, None, None


class _Entropies(torch.autograd.Function):
    """H = -sum p ln p of each row, p = softmax(z); its derivative by z_i is -p_i (ln p_i + H)."""

    @staticmethod
    def forward(ctx: Any, logits_BTV: Tensor, temperature: float) -> Tensor:
        """Return [B, T] in float32, or float64 for float64 logits."""
        entropies = [
            torch.special.entr(_log_softmax(logits_BTV, chunk, temperature).exp_()).sum(dim=-1)
            for chunk in _chunks(logits_BTV)
        ]
        entropies_BT = torch.cat(entropies, dim=1)
        ctx.save_for_backward(logits_BTV, entropies_BT)
        ctx.temperature = temperature
        return entropies_BT

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the logits in their own precision."""
        logits_BTV, entropies_BT = ctx.saved_tensors
        result_BTV = torch.empty_like(logits_BTV)
        for chunk in _chunks(logits_BTV):
            upstream = gradients[0][:, chunk]
            shares = _log_softmax(logits_BTV, chunk, ctx.temperature).exp_()
            parts = torch.special.entr(shares).sub_(shares.mul_(entropies_BT[:, chunk, None])).mul_(upstream[..., None])
            result_BTV[:, chunk] = _without_idle_rows(parts, upstream).div_(ctx.temperature)
        return result_BTV, None


@shaped
def token_log_probs(logits_BTV: Tensor, targets_BT: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the log-probability of each token, [B, T]: log softmax(logits / temperature)[target].

    Computed in float32 (float64 for float64 logits) over a few positions at a time; autograd keeps the given logits
    alone. A token whose result gets no gradient passes exactly 0 to its logits, whatever they hold.

    Args:
        logits_BTV: [B, T, V] logits of the next token, in any precision.
        targets_BT: [B, T] token ids in 0..V-1 (int64), that of a position being the token after it.
        temperature: divides the logits.

    Source: Luce 1959
    """
    return cast("Tensor", _PickedLogProbs.apply(logits_BTV, targets_BT, temperature))  # type: ignore[no-untyped-call]


@shaped
def token_entropies(logits_BTV: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the entropy of each position's next token, [B, T], nats, at least 0; ln V for equal logits.

    H = logsumexp z - sum softmax(z) z = -sum p ln p,  z = logits / temperature,  p = softmax(z)

    Computed as the latter, whose terms do not cancel; precision, memory and gradient as `token_log_probs`.

    Args:
        logits_BTV: [B, T, V] logits of the next token, in any precision.
        temperature: divides the logits.

    Source: Shannon 1948
    """
    return cast("Tensor", _Entropies.apply(logits_BTV, temperature))  # type: ignore[no-untyped-call]
