"""Floating-point operations of a training step, and the share of the hardware's peak that they reach."""

from __future__ import annotations

import re
from collections.abc import Sequence

_TERA = 1e12
_PEAKS = {
    "H100": 989 * _TERA,
    "H800": 989 * _TERA,
    "H200": 989 * _TERA,
    "A100": 312 * _TERA,
    "A800": 312 * _TERA,
    "H20": 148 * _TERA,
    "L40": 181 * _TERA,
    "L20": 119.5 * _TERA,
}
"""Dense bfloat16 operations a second, as the published trainer counts them: boards with less power reach less."""
_KNOWN = re.compile(rf"\b({'|'.join(_PEAKS)})\b", re.IGNORECASE)  # whole words: H20 is not H200, nor L40 an L40S


def dense_parameters(
    hidden: int, layers: int, heads: int, kv_heads: int, head_dim: int, mlp: int, vocabulary: int
) -> int:
    """Return the weights of a Qwen3 that multiply every token.

    (3 hidden mlp + hidden (q + k + v + o)) layers + 2 vocabulary hidden,  q = o = heads head_dim,  k = v = kv_heads
    head_dim. Norms are left out; the embedding counts beside the output layer, tied or not, as published.

    Source: verl
    """
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    return (3 * hidden * mlp + attention) * layers + 2 * vocabulary * hidden


def training_flop(dense: int, sequence_lengths: Sequence[int], head_dim: int, heads: int, layers: int) -> int:
    """Return the operations of one forward and backward pass over whole sequences.

    6 dense sum s + 12 head_dim heads layers sum s^2

    Counted for full attention, not its causal half, and without recomputation, as published.

    Args:
        dense: from `dense_parameters`.
        sequence_lengths: s, tokens of each sequence, padding left out.
        head_dim: width of a head.
        heads: query heads.
        layers: transformer layers.

    Source: verl
    """
    squares = sum(length**2 for length in sequence_lengths)
    return 6 * dense * sum(sequence_lengths) + 12 * squares * head_dim * heads * layers


def peak_flop(device_name: str) -> float | None:
    """Return the peak bfloat16 operations a second of one device, None for an unknown one (a CPU).

    Args:
        device_name: as the driver gives it, for example `NVIDIA H100 80GB HBM3`.

    Source: verl
    """
    match = _KNOWN.search(device_name)
    return _PEAKS[match.group(1).upper()] if match else None


def mfu(flop: float, seconds: float, peak: float) -> float:
    """Return the model FLOP utilisation flop / (seconds peak), a share of the peak.

    The seconds say of what: of the update alone (the published number), or of a whole step with its rollouts.

    Args:
        flop: operations.
        seconds: time that they took, greater than 0.
        peak: operations a second of all devices together, greater than 0.

    Raises:
        ValueError: a divisor is not positive.

    Source: Chowdhery 2022 (MFU)
    """
    if seconds <= 0 or peak <= 0:
        raise ValueError(f"seconds and peak must be positive, got {seconds} and {peak}")
    return flop / (seconds * peak)
