"""Temperatures and learning rates as functions of progress in [0, 1]; plain floats."""

from __future__ import annotations

import math


def linear(start: float, end: float, progress: float) -> float:
    """Return the point `progress` of the way from `start` to `end`, both reached exactly.

    (1 - p) start + p end

    Args:
        start: value at progress 0.
        end: value at progress 1.
        progress: p in [0, 1].

    Raises:
        ValueError: progress is outside [0, 1].

    Source: Lever-Plus published code
    """
    _require_share(progress)
    return (1 - progress) * start + progress * end


def cosine(start: float, end: float, progress: float) -> float:
    """Return the half cosine wave from `start` to `end`, flat at both.

    end + (start - end) (1 + cos(pi p)) / 2

    Args:
        start: value at progress 0.
        end: value at progress 1.
        progress: p in [0, 1].

    Raises:
        ValueError: progress is outside [0, 1].

    Source: Loshchilov 2017
    """
    _require_share(progress)
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2


def warmup(progress_steps: int, warmup_steps: int) -> float:
    """Return the warm-up factor min(1, progress_steps / warmup_steps), in [0, 1].

    Args:
        progress_steps: steps counted so far, at least 0. Count the step about to be made (1 for
            the first) to give the first step a learning rate above 0.
        warmup_steps: length of the ramp; 0 for none (factor 1).

    Raises:
        ValueError: a negative number of steps.

    Source: Goyal 2017 (warm-up)
    """
    if progress_steps < 0 or warmup_steps < 0:
        raise ValueError(f"steps must be at least 0, got {progress_steps} of {warmup_steps}")
    return 1.0 if progress_steps >= warmup_steps else progress_steps / warmup_steps


def _require_share(progress: float) -> None:
    if not 0 <= progress <= 1:
        raise ValueError(f"progress must be in [0, 1], got {progress}")
