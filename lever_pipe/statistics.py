"""What a table says beside a mean: spread, intervals over questions, paired differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

_INDICES_PER_DRAW = 1_000_000
"""Resampled indices held at a time (8 MB); the draw does not depend on it."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Mean of a - b over the same questions, with its interval; a sign change inside is no win."""

    difference: float
    low: float
    high: float


def mean_and_sd(values: Sequence[float] | NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean and the unbiased standard deviation (NaN for a single value).

    Args:
        values: one number a run or seed, at least one.

    Raises:
        ValueError: there is no value, or the values are not one-dimensional.

    Source: Student 1908
    """
    values_N = _vector("values", values)
    sd = float(values_N.std(ddof=1)) if values_N.size > 1 else math.nan
    return float(values_N.mean()), sd


def bootstrap_interval(
    values_N: ArrayLike,
    *,
    generator: np.random.Generator,
    n_resamples: int = 2000,
    level: float = 0.95,
) -> Interval:
    """Return the percentile bootstrap interval of the mean, resampling questions.

    The quantiles (1 - level)/2 and (1 + level)/2 of the means of `n_resamples` draws of N values
    with replacement. It covers the choice of questions, not of seeds.

    Args:
        values_N: [N] one number a question, at least one.
        generator: stream of the resamples.
        n_resamples: number of resamples, at least 1.
        level: coverage in (0, 1).

    Raises:
        ValueError: no values, more than one dimension, or `n_resamples` or `level` out of range.

    Source: Efron 1979 (bootstrap)
    """
    values = _vector("values_N", values_N)
    if n_resamples < 1 or not 0 < level < 1:
        raise ValueError(f"need n_resamples >= 1 and 0 < level < 1, got {n_resamples}, {level}")
    means = _resampled_means(values, generator, n_resamples)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def paired_difference(
    a_N: ArrayLike,
    b_N: ArrayLike,
    *,
    generator: np.random.Generator,
    n_resamples: int = 2000,
    level: float = 0.95,
) -> PairedDifference:
    """Return mean(a - b) over the same questions and its percentile bootstrap interval.

    Question difficulty is common to both and cancels, which two separate intervals ignore.

    Args:
        a_N: [N] one number a question.
        b_N: [N] the other policy's, in the same order of questions.
        generator: stream of the resamples.
        n_resamples: number of resamples, at least 1.
        level: coverage in (0, 1).

    Raises:
        ValueError: the lengths differ, or as `bootstrap_interval`.

    Source: Efron 1979 (bootstrap)
    """
    a, b = _vector("a_N", a_N), _vector("b_N", b_N)
    if a.size != b.size:
        raise ValueError(f"a_N and b_N must pair question by question, got {a.size} and {b.size}")
    differences = a - b
    interval = bootstrap_interval(differences, generator=generator, n_resamples=n_resamples, level=level)
    return PairedDifference(float(differences.mean()), interval.low, interval.high)


def standard_error_percent(accuracy: float, n: int) -> float:
    """Return 100 sqrt(accuracy (1 - accuracy) / n), points of accuracy.

    The binomial value: exact for right-or-wrong scores, an upper bound for soft ones, since no
    distribution on [0, 1] with that mean varies more.

    Args:
        accuracy: mean score in [0, 1].
        n: number of questions, at least 1.

    Raises:
        ValueError: an argument is out of range.

    Source: Student 1908
    """
    if not 0 <= accuracy <= 1 or n < 1:
        raise ValueError(f"need accuracy in [0, 1] and n >= 1, got {accuracy} and {n}")
    return 100 * math.sqrt(accuracy * (1 - accuracy) / n)


def _vector(name: str, values: ArrayLike) -> NDArray[np.float64]:
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1 or vector.size == 0:
        raise ValueError(f"{name} must be [N] with N >= 1, got shape {list(vector.shape)}")
    return vector


def _resampled_means(
    values_N: NDArray[np.float64], generator: np.random.Generator, n_resamples: int
) -> NDArray[np.float64]:
    n = values_N.size
    rows = max(1, _INDICES_PER_DRAW // n)
    means = []
    for start in range(0, n_resamples, rows):
        shape = (min(rows, n_resamples - start), n)
        means.append(values_N[generator.integers(n, size=shape)].mean(axis=1))
    return np.concatenate(means)
