"""Floating-point operations of a training step, and their share of the hardware's peak."""

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
"""Dense bfloat16 operations per second, as in the published trainer; boards with a lower power limit reach less."""
_KNOWN = re.compile(rf"\b({'|'.join(_PEAKS)})\b", re.IGNORECASE)  # whole words: H20 is not H200, nor L40 an L40S


def dense_parameters(
    hidden: int, layers: int, heads: int, kv_heads: int, head_dim: int, mlp: int, vocabulary: int
) -> int:
    """Return the number of a Qwen3's weights in matrix products with every token.

    (3 hidden mlp + hidden (q + k + v + o)) layers + 2 vocabulary hidden,  q = o = heads head_dim,  k = v = kv_heads
    head_dim. Norms do not count. As published, both the embedding and the output layer count, even if they are tied.

    Source: verl
    """
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    return (3 * hidden * mlp + attention) * layers + 2 * vocabulary * hidden


def training_flop(dense: int, sequence_lengths: Sequence[int], head_dim: int, heads: int, layers: int) -> int:
    """Return the operations of one forward and backward pass over whole sequences.

    6 dense sum s + 12 head_dim heads layers sum s^2

    As published, this counts full attention instead of its causal half, and no recomputation.

    Args:
        dense: from `dense_parameters`.
        sequence_lengths: s, the tokens of each sequence without padding.
        head_dim: width of a head.
        heads: query heads.
        layers: transformer layers.

    Source: verl
    """
    squares = sum(length**2 for length in sequence_lengths)
    return 6 * dense * sum(sequence_lengths) + 12 * squares * head_dim * heads * layers


def peak_flop(device_name: str) -> float | None:
    """Return the peak bfloat16 operations per second of one device, or None for an unknown one, such as a CPU.

    Args:
        device_name: the driver's name, for example `NVIDIA H100 80GB HBM3`.

    Source: verl
    """
    match = _KNOWN.search(device_name)
    return _PEAKS[match.group(1).upper()] if match else None


def mfu(flop: float, seconds: float, peak: float) -> float:
    """Return the model FLOP utilization flop / (seconds peak), a share of the peak.

    It is relative to the given seconds: of the update only (the published number), or of a whole step with rollouts.

    Args:
        flop: number of operations.
        seconds: wall time of these operations, greater than 0.
        peak: operations per second of all devices together, greater than 0.

    Raises:
        ValueError: a divisor is not positive.

    Source: Chowdhery 2022 (MFU)
    """
    if seconds <= 0 or peak <= 0:
        raise ValueError(f"seconds and peak must be positive, got {seconds} and {peak}")
    return flop / (seconds * peak)
