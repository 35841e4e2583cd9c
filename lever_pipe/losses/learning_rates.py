"""The learning rate of an agent's training against completed updates, and how much of it a run has used."""

from __future__ import annotations

from typing import Literal, assert_never

from lever_pipe.losses.schedules import cosine, linear, warmup

ScheduleKind = Literal["constant", "cosine"]


def scheduled_rate(
    update: int, total: int, *, peak: float, kind: ScheduleKind, warmup_steps: int, minimum: float
) -> float:
    """Return the learning rate of one update.

    i < W:     peak (m + (1 - m) i / W)
    constant:  peak
    cosine:    peak (m + (1 - m) (1 + cos(pi p)) / 2),  p = (i - W) / (total - W)

    So the first update of a warm-up moves nothing where m = 0, update W has the peak, and the cosine reaches its
    minimum at i = total, one step after the last update.

    Args:
        update: i, the updates completed before this one (0 for the first). The published trainer counts training
            steps: the mini-batches of a step share one rate.
        total: planned updates.
        peak: highest rate.
        kind: what follows the warm-up.
        warmup_steps: W; 0 for none.
        minimum: m, as a share of the peak, in [0, 1].

    Raises:
        ValueError: `update` is outside [0, total], `warmup_steps` negative or `minimum` no share.

    Source: verl
    """
    if not 0 <= update <= total:
        raise ValueError(f"update must be in [0, total={total}], got {update}")
    if not 0 <= minimum <= 1:
        raise ValueError(f"minimum must be a share in [0, 1], got {minimum}")
    lowest = minimum * peak
    ramp = linear(lowest, peak, warmup(update, warmup_steps))
    if update < warmup_steps or kind == "constant":
        return ramp
    if kind == "cosine":
        progress = (update - warmup_steps) / max(1, total - warmup_steps)
        return max(lowest, cosine(peak, lowest, progress))
    assert_never(kind)
