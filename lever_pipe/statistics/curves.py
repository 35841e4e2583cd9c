"""Evaluation curves: drawdowns, first steps at a threshold, comparisons of two curves, and flat noise.

The tests treat evaluations as independent, so they are indicative. One run an arm allows no conclusion about the
variance of training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

Values = NDArray[np.float64]
_NOISE_ROWS = 50_000
_EQUAL = 1e-12
"""Threshold of equality: differences of equal means are rounding only, about 1e-16."""


def drawdowns(values_MN: Values) -> Values:
    """Return [M] the largest drop below an earlier maximum of each of M curves.

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


def f_test(left: ArrayLike, right: ArrayLike) -> float:
    """Return the two-sided p value of equal variances of two normal samples; 1 if neither varies, 0 if one does.

    Args:
        left: two or more values.
        right: two or more values.

    Source: Snedecor 1934 (F test)
    """
    a, b = np.asarray(left, dtype=np.float64), np.asarray(right, dtype=np.float64)
    if min(np.ptp(a), np.ptp(b)) <= _EQUAL:
        return float(max(np.ptp(a), np.ptp(b)) <= _EQUAL)
    ratio = a.var(ddof=1) / b.var(ddof=1)
    args = (a.size - 1, b.size - 1, ratio)
    return float(min(1.0, 2 * min(scipy.special.fdtr(*args), scipy.special.fdtrc(*args))))


def paired_t(differences_N: ArrayLike) -> tuple[float, float, float]:
    """Return t for a mean of zero, its two-sided p, and half the width of the mean's 95 % interval.

    All are NaN for fewer than two values and for infinite ones.

    Args:
        differences_N: [N]; equal ones have p = 1 if they are 0, else 0.

    Source: Student 1908
    """
    differences = np.asarray(differences_N, dtype=np.float64)
    mean, n = float(differences.mean()) if differences.size else math.nan, differences.size
    if n < 2 or not math.isfinite(mean):
        return math.nan, math.nan, math.nan
    if np.ptp(differences) <= _EQUAL:
        return (math.nan, 1.0, 0.0) if not mean else (math.copysign(math.inf, mean), 0.0, 0.0)
    error = float(differences.std(ddof=1)) / math.sqrt(n)
    t = mean / error
    return t, float(2 * scipy.special.stdtr(n - 1, -abs(t))), float(scipy.special.stdtrit(n - 1, 0.975) * error)


@dataclass(frozen=True, slots=True)
class FlatNoise:
    """Simulated curves of `n` independent normal values with one mean: no learning and no difference."""

    sd: float
    """Standard deviation of one value."""
    drawdown_draws: Values
    best_gap_draws: Values

    def chance_of_drawdown(self, at_least: float) -> float:
        """Return the share of flat curves with at least this drawdown."""
        return float(np.mean(self.drawdown_draws >= at_least))

    def chance_of_best_gap(self, at_least: float) -> float:
        """Return the share of pairs of flat curves whose best values differ by at least this."""
        return float(np.mean(self.best_gap_draws >= at_least))


def flat_noise(n: int, sd: float, generator: np.random.Generator, *, n_draws: int = 200_000) -> FlatNoise:
    """Return simulated flat curves.

    The Monte Carlo error of a share is at most 0.5 / sqrt(n_draws), 0.0011 by default.

    Args:
        n: values of a curve.
        sd: standard deviation of one value.
        generator: random stream of the simulation.
        n_draws: simulated pairs of curves.

    Source: this project
    """
    falls, gaps = [], []
    for start in range(0, n_draws, _NOISE_ROWS):
        shape = (min(_NOISE_ROWS, n_draws - start), n)
        left, right = generator.normal(0.0, sd, shape), generator.normal(0.0, sd, shape)
        falls.append(drawdowns(left))
        gaps.append(np.abs(left.max(axis=1) - right.max(axis=1)))
    return FlatNoise(sd, np.concatenate(falls), np.concatenate(gaps))
