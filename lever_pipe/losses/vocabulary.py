"""Log-probabilities and entropies of tokens, computed without a second copy of all logits.

With a large vocabulary, logits fill a device's memory: 9,000 tokens of 150,000 logits take 2.7 GB in bfloat16, and
plain autograd keeps two to three float32 copies of them. These functions convert only a few positions at a time to
float32, in the forward pass and again in the backward pass. Only the given logits and their gradient exist as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from lever_pipe.base.shapes import shaped

_CHUNK = 2**24
"""Maximum number of logits in float32 at one time: 64 MiB."""


def _chunks(logits_BTV: Tensor) -> Iterator[slice]:
    """Yield slices of the positions T; results do not depend on their size."""
    n_rows, n_positions, n_words = logits_BTV.shape
    width = max(1, _CHUNK // max(1, n_rows * n_words))
    for start in range(0, max(1, n_positions), width):  # without positions, yield one empty slice for `torch.cat`
        yield slice(start, start + width)


def _log_softmax(logits_BTV: Tensor, chunk: slice, temperature: float) -> Tensor:
    logits = logits_BTV[:, chunk]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return (logits if temperature == 1 else logits / temperature).log_softmax(dim=-1)


def _without_idle_rows(gradients: Tensor, upstream: Tensor) -> Tensor:
    """Return `gradients` with exact zeros in rows with an upstream gradient of 0, even for NaN logits."""
    return gradients.masked_fill_((upstream == 0)[..., None], 0.0)


class _PickedLogProbs(torch.autograd.Function):
    """Function log softmax(z)[target] of each row, with the derivative [i = target] - softmax(z)_i by z_i."""

    @staticmethod
    def forward(ctx: Any, logits_BTV: Tensor, targets_BT: Tensor, temperature: float) -> Tensor:
        """Return [B, T] in float32, or float64 for float64 logits."""
        # The logits exist anyway; the backward pass computes the log-probabilities from them again.
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
    """Function H = -sum p ln p of each row, p = softmax(z), with the derivative -p_i (ln p_i + H) by z_i."""

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
            # `entr` gives -p ln p with the limit 0 at p = 0, where p * ln p would be NaN.
            shares = _log_softmax(logits_BTV, chunk, ctx.temperature).exp_()
            parts = torch.special.entr(shares).sub_(shares.mul_(entropies_BT[:, chunk, None])).mul_(upstream[..., None])
            result_BTV[:, chunk] = _without_idle_rows(parts, upstream).div_(ctx.temperature)
        return result_BTV, None


@shaped
def token_log_probs(logits_BTV: Tensor, targets_BT: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the log-probability of each token, [B, T]: log softmax(logits / temperature)[target].

    Computed in float32 (float64 for float64 logits) for a few positions at a time; autograd stores only the given
    logits. If the upstream gradient of a token is 0, the gradient of its logits is exactly 0, even if they are NaN.

    Args:
        logits_BTV: [B, T, V] logits of the next token, in any precision.
        targets_BT: [B, T] token ids in 0..V-1 (int64), for each position the next token.
        temperature: divides the logits.

    Source: Luce 1959
    """
    return cast("Tensor", _PickedLogProbs.apply(logits_BTV, targets_BT, temperature))  # type: ignore[no-untyped-call]


@shaped
def token_entropies(logits_BTV: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the entropy of each position's next token, [B, T], nats, at least 0; ln V for equal logits.

    H = logsumexp z - sum softmax(z) z = -sum p ln p,  z = logits / temperature,  p = softmax(z)

    The second form is computed, because its terms do not cancel. For precision, memory and gradients see
    `token_log_probs`.

    Args:
        logits_BTV: [B, T, V] logits of the next token, in any precision.
        temperature: divides the logits.

    Source: Shannon 1948
    """
    return cast("Tensor", _Entropies.apply(logits_BTV, temperature))  # type: ignore[no-untyped-call]
