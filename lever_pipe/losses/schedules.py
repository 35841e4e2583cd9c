"""Schedules of temperatures, learning rates and loss weights, and the rule for early stopping.

All functions take and return plain floats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, assert_never

ScheduleKind = Literal["constant", "linear", "cosine", "rising"]
LARGEST_ERROR = 0.2
"""Limit of the relative error that a controller uses."""


def linear(start: float, end: float, progress: float) -> float:
    """Return the linear interpolation from `start` to `end`; both end points are exact.

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
    """Return the half cosine wave from `start` to `end`, with slope 0 at both.

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


def scheduled_rate(
    update: int, total: int, *, peak: float, kind: ScheduleKind, warmup_steps: int, minimum: float
) -> float:
    """Return the learning rate, or the weight of a loss term, for one update; with m = 1 it is exactly the peak.

    i < W:     peak (m + (1 - m) i / W)
    constant:  peak
    linear:    peak (m + (1 - m) (1 - p)),  p = (i - W) / (total - W)
    cosine:    peak (m + (1 - m) (1 + cos(pi p)) / 2)
    rising:    peak (m + (1 - m) p)

    The first update of a warm-up with m = 0 therefore has rate 0, and update W has the peak. After the warm-up, the
    schedule ends at i = total, one step after the last update.

    Args:
        update: i, the updates completed before this one (0 for the first). The published trainer counts training
            steps: the mini-batches of a step share one rate.
        total: planned updates.
        peak: highest rate.
        kind: shape after the warm-up; `rising` has no warm-up.
        warmup_steps: W; 0 for none.
        minimum: m, as a share of the peak, in [0, 1].

    Raises:
        ValueError: `update` is outside [0, total], `warmup_steps` is negative or `minimum` is outside [0, 1].

    Source: verl
    """
    if not 0 <= update <= total:
        raise ValueError(f"update must be in [0, total={total}], got {update}")
    if warmup_steps < 0:
        raise ValueError(f"warmup_steps must be at least 0, got {warmup_steps}")
    if not 0 <= minimum <= 1:
        raise ValueError(f"minimum must be a share in [0, 1], got {minimum}")
    lowest = minimum * peak
    ramp = linear(lowest, peak, 1.0 if update >= warmup_steps else update / warmup_steps)
    # At least 1: the warm-up may be as long as the whole training.
    progress = max(0, update - warmup_steps) / max(1, total - warmup_steps)
    if update < warmup_steps or kind == "constant":
        rate = ramp
    elif kind == "linear":
        rate = linear(peak, lowest, progress)
    elif kind == "cosine":
        rate = cosine(peak, lowest, progress)
    elif kind == "rising":
        rate = linear(lowest, peak, progress)
    else:
        assert_never(kind)
    return min(peak, max(lowest, rate))  # rounding must not leave the range


def adapted_weight(
    weight: float, measured: float, *, target: float, episodes: int, horizon: int, is_bonus: bool
) -> float:
    """Return the weight of a loss term for the next step, which keeps the term's metric near a target.

    w (1 + s e n / N),  e = clip(measured / target - 1, -0.2, 0.2),  s = 1 for a penalty, -1 for a bonus

    Above the target, the weight of a penalty increases and the weight of a bonus decreases.

    Args:
        weight: w, at least 0.
        measured: the metric in the step with weight w.
        target: above 0, in the same unit.
        episodes: n, the episodes of a step.
        horizon: N >= n, the number of episodes in which the weight changes by about a fifth at most.
        is_bonus: whether the term lowers the loss.

    Raises:
        ValueError: `target` is not above 0, or `horizon` less than `episodes`.

    Source: Ziegler 2019 (adaptive KL)
    Source: verl
    """
    if not target > 0 or horizon < episodes:
        raise ValueError(f"need target > 0 and horizon >= episodes, got {target}, {horizon} and {episodes}")
    error = min(LARGEST_ERROR, max(-LARGEST_ERROR, measured / target - 1))
    return weight * (1 + (-error if is_bonus else error) * episodes / horizon)


def adapt_kl_beta(
    kl_beta: float,
    penalty: float,
    *,
    low: float,
    high: float,
    factor: float,
    minimum: float,
    maximum: float,
) -> float:
    """Return the penalty weight for the next step, from the penalty of this one.

    beta * factor if penalty > high; beta / factor if penalty < low; else unchanged; then limited
    to [minimum, maximum].

    Args:
        kl_beta: weight of this step.
        penalty: penalty of this step before weighting, nats.
        low: penalty below which the weight decreases.
        high: penalty above which the weight increases.
        factor: of the change, greater than 1.
        minimum: lower limit of the weight.
        maximum: upper limit of the weight.

    Source: Lever-Plus published code
    """
    if penalty > high:
        kl_beta = kl_beta * factor
    elif penalty < low:
        kl_beta = kl_beta / factor
    return min(max(kl_beta, minimum), maximum)


def has_settled(values: Sequence[float], *, patience: int, least_change: float) -> bool:
    """Return whether the last `patience` values are without improvement.

    An improvement is a value more than `least_change` above the previous improvement; the first value is one.

    Args:
        values: points of a curve that should rise, in order.
        patience: at least 1.
        least_change: at least 0. Smaller changes do not count one by one, but their sum does, because each value is
            compared with the last improvement.

    Source: this project
    """
    risen, waited = -math.inf, 0
    for value in values:
        risen, waited = (value, 0) if value - risen > least_change else (risen, waited + 1)
    return waited >= patience


def _require_share(progress: float) -> None:
    if not 0 <= progress <= 1:
        raise ValueError(f"progress must be in [0, 1], got {progress}")


def progress_of(epoch: int, step: int, steps_per_epoch: int, horizon_epochs: int) -> float:
    """Return a step's position in the schedule's horizon, in [0, 1]; later epochs have 1."""
    last = horizon_epochs * steps_per_epoch - 1
    return min(1.0, ((epoch - 1) * steps_per_epoch + step) / max(last, 1))
