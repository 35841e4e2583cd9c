"""Tests of paired differences, their adjustment for the number of tests, and the differences they can detect."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from lever_pipe.base.shapes import ShapeError
from lever_pipe.statistics.crossed import Bounds, Estimates, beyond, n_differing, reach

Array = NDArray[np.float64]

FLIPPED_AT_MOST = 16
"""Up to this number of differences, the test enumerates all sign assignments (65,536)."""
_FINEST_LATTICE = 1000
"""Differences are at the finest multiples of 1 / this; with finer ones the signs are sampled."""
_LONGEST_LATTICE = 2_000_000
"""Maximum length of the exact distribution of sums; longer ones are sampled."""


def t_p_values(estimates: Estimates) -> Array:
    """Return [C] two-sided p values of a difference of zero, by Student's t averaged over the runs' possible variance.

    They generalise to new runs and new questions. At every level and any number of runs a true null is rejected at most
    as often as the level allows, for any variation between seeds (`make bench-statistics`; docs/report.md has the
    table).

    p is at least 2^(1 - k) for k differing questions, the smallest value that exchanging their answers can give:
    a handful of questions cannot show the spread that Student's t relies on.

    Args:
        estimates: C differences; a value without error has p = 1 if it is 0.

    Source: Student 1908
    Source: Fisher 1935 (fiducial argument)
    """
    p_C = 2 * beyond(estimates, np.abs(estimates.value))
    return np.asarray(np.minimum(1.0, np.maximum(p_C, 2.0 ** (1 - n_differing(estimates)))))


def sign_flip_p(differences_N: ArrayLike, *, generator: np.random.Generator, n_draws: int = 99_999) -> float:
    """Return the two-sided p value of a mean difference of zero between two runs over the same questions.

    p is the share of the 2^N ways to swap the two runs on single questions whose sum is as far from 0 as the observed
    one. It generalises to new questions for these very runs, not to runs with other seeds. Up to `FLIPPED_AT_MOST`
    differing questions, all ways are enumerated. For more questions the sums are counted exactly on a lattice, because
    scores have few levels: the characteristic function of the sums is the product of cos(w d) over the differences d.
    If the differences have no lattice, signs are sampled.

    Args:
        differences_N: [N] one difference a question.
        generator: random stream of the signs.
        n_draws: number of sampled assignments if counting is not possible; p is then at least 1 / (n_draws + 1).

    Raises:
        ShapeError: not one-dimensional, or empty.

    Source: Fisher 1935 (randomisation test)
    """
    differences = np.asarray(differences_N, dtype=np.float64)
    if differences.ndim != 1 or differences.size == 0:
        raise ShapeError(f"differences_N must be [N] with N >= 1, got shape {list(differences.shape)}")
    # Differences of 0 have no sign to flip.
    sizes = np.abs(differences[np.abs(differences) > 1e-12])
    if sizes.size == 0:
        return 1.0
    observed = abs(float(differences.sum()))
    if sizes.size <= FLIPPED_AT_MOST:
        return _enumerated_p(sizes, observed)
    steps = _lattice(sizes)
    if steps is None:
        return _sampled_p(sizes, observed, generator, n_draws)
    unit = float(sizes[0] / steps[0])
    return _counted_p(steps, round(observed / unit))


def holm(p_values_M: ArrayLike) -> Array:
    """Return [M] p values adjusted for their family of M tests, by Holm's procedure.

    Rejecting the adjusted values below a level keeps the family-wise error at that level. The m-th smallest p is
    multiplied by M + 1 - m, is at least the adjusted value of any smaller one, and is at most 1.

    Args:
        p_values_M: [M] the p values of one family, none for an empty one.

    Source: Holm 1979
    """
    p = np.asarray(p_values_M, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def detectable(estimates: Estimates, bounds: Bounds, *, power: float = 0.8, level: float = 0.05) -> Array:
    """Return [C] the smallest true differences that a two-sided test at `level` finds with this `power`.

    It is the half width of the interval, plus the quantile of the error on the other side at this power. It is
    therefore never below the half width. A lower bound applies if so few questions differ that no exchange of their
    answers could be rejected. It is the share of all questions that must turn from wrong to right, so that enough of
    the sampled ones differ.

    Args:
        estimates: C differences of accuracies in [0, 1].
        bounds: their intervals at 1 - level.
        power: in (0, 1).
        level: in (0, 1).

    Source: Student 1908
    Source: Clopper 1934 (exact bound)
    """
    half_width_C, missed_C = (reach(estimates, chance) for chance in (1 - level / 2, power))
    ratio_C = np.divide(missed_C, half_width_C, out=np.zeros_like(half_width_C), where=half_width_C > 0)
    least_C = (bounds.high - bounds.low) / 2 * (1 + ratio_C)
    n, needed = estimates.n_questions, math.ceil(1 - math.log2(level))
    share = float(scipy.stats.beta.ppf(power, needed, n - needed + 1)) if n >= needed else 1.0
    return np.asarray(np.where(n_differing(estimates) < needed, np.maximum(least_C, share), least_C))


def _enumerated_p(sizes: Array, observed: float) -> float:
    # Sums in another order round differently: without the tolerance, ties would not count as extreme.
    signs = np.array(list(product((1.0, -1.0), repeat=sizes.size)))
    return float(np.mean(np.abs(signs @ sizes) >= observed - 1e-12))


def _lattice(sizes: Array) -> NDArray[np.int64] | None:
    """Return the sizes as integer multiples of their common unit, or None if there is no such unit."""
    levels = np.unique(sizes.round(12))
    for parts in range(1, _FINEST_LATTICE + 1):
        if np.abs(levels * parts - np.round(levels * parts)).max() < 1e-6:
            steps = np.round(sizes * parts).astype(np.int64)
            steps //= np.gcd.reduce(steps)
            return steps if 2 * steps.sum() < _LONGEST_LATTICE else None
    return None


def _counted_p(steps: NDArray[np.int64], observed: int) -> float:
    total = int(steps.sum())
    length = scipy.fft.next_fast_len(2 * total + 1, real=True)
    angles = 2 * np.pi * np.arange(length // 2 + 1) / length
    characteristic = np.ones_like(angles)
    for step, count in zip(*np.unique(steps, return_counts=True), strict=True):
        characteristic *= np.cos(angles * step) ** count
    # The transform contains the probabilities of the sums 0, 1, ... total, then those of the negative sums.
    probabilities = scipy.fft.irfft(characteristic, length)
    p = 2 * float(probabilities[observed : total + 1].sum()) if observed else 1.0
    # Rounding of the transform is about 1e-16, more than the smallest p of many questions.
    return min(1.0, max(p, 2.0 ** (1 - steps.size)))


def _sampled_p(sizes: Array, observed: float, generator: np.random.Generator, n_draws: int) -> float:
    extreme, done, rows = 0, 0, max(1, 4_000_000 // sizes.size)
    while done < n_draws:
        n = min(rows, n_draws - done)
        signs = generator.integers(0, 2, size=(n, sizes.size), dtype=np.int8) * 2 - 1
        extreme += int((np.abs(signs @ sizes) >= observed - 1e-9).sum())
        done += n
    # The observed assignment counts as one of the draws, so that p is never 0.
    return (1 + extreme) / (1 + n_draws)
