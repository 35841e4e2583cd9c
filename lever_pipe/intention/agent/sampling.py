"""One token a row: drawn by the inverse of its distribution function, or the most probable one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

UNIFORMS_PER_DRAW = 64


def uniforms(stream: np.random.Generator) -> Iterator[float]:
    """Yield the uniform numbers of a stream one by one; drawing them in blocks changes none of them."""
    while True:
        yield from stream.random(UNIFORMS_PER_DRAW).tolist()


def draw_tokens(logits_BV: Tensor, uniforms_B: Tensor, *, temperature: float) -> tuple[Tensor, Tensor]:
    """Return tokens drawn at a temperature, int64 [B], and their log-probabilities at it, float64 [B].

    A token is drawn where its row's distribution function passes the row's uniform number, so that a row's draw
    depends on nothing but its own numbers.

    Args:
        logits_BV: float [B, V].
        uniforms_B: float64 [B] in [0, 1).
        temperature: above 0.
    """
    log_probs_BV = (logits_BV.double() / temperature).log_softmax(dim=-1)
    cumulative_BV = log_probs_BV.exp().cumsum(dim=-1)
    total_B1 = cumulative_BV[:, -1:]
    # Rounding must not carry a target to the end, behind tokens of probability 0.
    target_B1 = torch.minimum(uniforms_B[:, None] * total_B1, torch.nextafter(total_B1, torch.zeros_like(total_B1)))
    return _with_log_probs(torch.searchsorted(cumulative_BV, target_B1, right=True), log_probs_BV)


def likeliest_tokens(logits_BV: Tensor) -> tuple[Tensor, Tensor]:
    """Return the most probable tokens, int64 [B], and their log-probabilities at temperature 1, float64 [B]."""
    return _with_log_probs(logits_BV.argmax(dim=-1, keepdim=True), logits_BV.double().log_softmax(dim=-1))


def _with_log_probs(tokens_B1: Tensor, log_probs_BV: Tensor) -> tuple[Tensor, Tensor]:
    return tokens_B1.squeeze(1), log_probs_BV.gather(1, tokens_B1).squeeze(1)
