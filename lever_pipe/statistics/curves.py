"""Statistics of one evaluation curve: level, changes, trend, drawdown."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CurveStatistics:
    """What a curve of N evaluations shows; changes are between neighbours, shares are not percentages."""

    n: int
    mean: float
    sd: float
    variation: float  # sd / mean
    median: float
    least: float
    most: float
    value_range: float
    best_step: float  # of ties the first
    changes: tuple[float, ...]
    relative_changes: tuple[float, ...]  # against the value before
    sd_of_changes: float
    rms_of_changes: float
    mean_size_of_changes: float
    largest_change: float
    total_variation: float
    sign_changes: int  # of neighbouring changes
    falls: int
    drawdown: float  # largest fall below an earlier maximum
    relative_drawdown: float  # as a share of that maximum
    drawdown_from: float  # steps of the maximum and of the value below it
    drawdown_to: float
    slope: float  # least squares, a step
    slope_error: float
    slope_t: float
    r_squared: float
    residual_sd: float  # round the line, n - 2 degrees of freedom
    von_neumann: float  # sum of squared changes / sum of squared deviations; 2 without memory
    lag_one: float  # correlation of neighbours
    trapezoid_mean: float  # area under the curve / span of steps
    mean_of_last_3: float
    mean_of_last_5: float


def curve_statistics(steps_N: ArrayLike, values_N: ArrayLike) -> CurveStatistics:
    """Return the statistics of a curve; NaN where one has no meaning, as a correlation of equal values.

    Args:
        steps_N: [N] training steps, rising.
        values_N: [N] what was evaluated there; N >= 5.

    Raises:
        ValueError: another shape, too few values, or steps that do not rise.

    Source: von Neumann 1941
    Source: Student 1908
    Source: this project
    """
    steps, values = _curve(steps_N, values_N)
    changes = np.diff(values)
    line = scipy.stats.linregress(steps, values)
    residuals = values - line.intercept - line.slope * steps
    squares = float(np.sum((values - values.mean()) ** 2))
    low = _drawdown_end(values)
    high = int(np.argmax(values[: low + 1]))
    return CurveStatistics(
        n=values.size,
        mean=float(values.mean()),
        sd=float(values.std(ddof=1)),
        variation=_share(values.std(ddof=1), values.mean()),
        median=float(np.median(values)),
        least=float(values.min()),
        most=float(values.max()),
        value_range=float(np.ptp(values)),
        best_step=float(steps[np.argmax(values)]),
        changes=tuple(map(float, changes)),
        relative_changes=tuple(map(_share, changes, values[:-1])),
        sd_of_changes=float(changes.std(ddof=1)),
        rms_of_changes=float(np.sqrt(np.mean(changes**2))),
        mean_size_of_changes=float(np.abs(changes).mean()),
        largest_change=float(np.abs(changes).max()),
        total_variation=float(np.abs(changes).sum()),
        sign_changes=int(np.sum(changes[1:] * changes[:-1] < 0)),
        falls=int(np.sum(changes < 0)),
        drawdown=float(values[high] - values[low]),
        relative_drawdown=_share(values[high] - values[low], values[high]),
        drawdown_from=float(steps[high]),
        drawdown_to=float(steps[low]),
        slope=float(line.slope),
        slope_error=float(line.stderr),
        slope_t=_share(line.slope, line.stderr),
        r_squared=float(line.rvalue**2) if squares else math.nan,
        residual_sd=float(np.sqrt(np.sum(residuals**2) / (values.size - 2))),
        von_neumann=_share(float(np.sum(changes**2)), squares),
        lag_one=_lag_one(values),
        trapezoid_mean=float(trapezoid_weights(steps) @ values),
        mean_of_last_3=float(values[-3:].mean()),
        mean_of_last_5=float(values[-5:].mean()),
    )


def drawdowns(values_MN: Values) -> Values:
    """Return [M] the largest fall below an earlier maximum of each of M curves.

    Args:
        values_MN: [M, N].

    Source: this project
    """
    falls: Values = (np.maximum.accumulate(values_MN, axis=1) - values_MN).max(axis=1)
    return falls


def first_reaching(steps_N: ArrayLike, values_N: ArrayLike, threshold: float) -> float | None:
    """Return the first step whose value is at least `threshold`, or None.

    Args:
        steps_N: [N] rising.
        values_N: [N].
        threshold: in the unit of the values.

    Source: this project
    """
    reached = np.flatnonzero(np.asarray(values_N, dtype=float) >= threshold)
    return float(np.asarray(steps_N, dtype=float)[reached[0]]) if reached.size else None


def trapezoid_weights(steps_N: ArrayLike) -> Values:
    """Return [N] weights whose sum with the values of a curve is the area under it over its span of steps.

    Args:
        steps_N: [N] rising; a single step has weight 1.

    Source: this project
    """
    steps = np.asarray(steps_N, dtype=np.float64)
    if steps.size == 1:
        return np.ones(1)
    widths = np.diff(steps)
    sides = np.concatenate([widths, [0.0]]) + np.concatenate([[0.0], widths])
    weights: Values = sides / (2 * (steps[-1] - steps[0]))
    return weights


def excess_sd(sd_of_changes: float, error: float) -> float:
    """Return the standard deviation of changes that the noise of two evaluations does not explain.

    sqrt(max(0, sd^2 - 2 error^2)): a change is the difference of two evaluations, each with the standard error.

    Args:
        sd_of_changes: of a curve, from evaluation to evaluation.
        error: standard error of one evaluation.

    Source: this project
    """
    return math.sqrt(max(0.0, sd_of_changes**2 - 2 * error**2))


def _share(part: float, whole: float) -> float:
    """Return part / whole, NaN for a whole of zero."""
    return float(part / whole) if whole else math.nan


def _lag_one(values: Values) -> float:
    sides = values[1:], values[:-1]
    if any(np.ptp(side) == 0 for side in sides):
        return math.nan
    return float(np.corrcoef(*sides)[0, 1])


def _drawdown_end(values: Values) -> int:
    return int(np.argmax(np.maximum.accumulate(values) - values))


def _curve(steps_N: ArrayLike, values_N: ArrayLike) -> tuple[Values, Values]:
    steps, values = np.asarray(steps_N, dtype=np.float64), np.asarray(values_N, dtype=np.float64)
    if steps.shape != values.shape or steps.ndim != 1 or steps.size < 5:
        raise ValueError(f"need two vectors [N] with N >= 5, got {list(steps.shape)} and {list(values.shape)}")
    if np.any(np.diff(steps) <= 0):
        raise ValueError("need rising steps")
    return steps, values
