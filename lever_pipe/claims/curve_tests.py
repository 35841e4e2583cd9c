"""Two evaluation curves against each other, and against what noise alone would show.

All tests take the evaluations as independent, so they are indicative; and one run an arm allows no statement about
training variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from lever_pipe.claims.curve_statistics import drawdowns

Values = NDArray[np.float64]
SWAPS_AT_MOST = 16
"""Pairs up to which every swap of labels is enumerated (65,536 swaps)."""
_NOISE_ROWS = 50_000


@dataclass(frozen=True, slots=True)
class CurveComparison:
    """Left minus right at the same N steps, and the tests of it."""

    mean: float
    sd: float
    t: float
    p_t: float
    low: float  # 95 % t interval of the mean difference
    high: float
    p_wilcoxon: float
    above: int  # steps at which left lies above right, and below
    below: int
    p_sign: float
    variance_ratio_of_changes: float  # right / left
    p_f_of_changes: float
    p_levene_of_changes: float
    p_swap_of_changes: float
    p_f_of_levels: float


def compare_curves(left_N: ArrayLike, right_N: ArrayLike) -> CurveComparison:
    """Return the comparison of two curves over the same steps.

    Wilcoxon, sign and swap tests are exact; the Levene test takes deviations from medians.

    Args:
        left_N: [N] values, 5 to 17 of them, none equal to its partner.
        right_N: [N] values at the same steps.

    Raises:
        ValueError: another shape or number of values.
    """
    left, right = np.asarray(left_N, dtype=np.float64), np.asarray(right_N, dtype=np.float64)
    if left.shape != right.shape or left.ndim != 1 or not 5 <= left.size <= SWAPS_AT_MOST + 1:
        raise ValueError(f"need two vectors [N] with 5 <= N <= 17, got {list(left.shape)} and {list(right.shape)}")
    differences, changes = left - right, (np.diff(left), np.diff(right))
    paired = stats.ttest_rel(left, right)
    interval = paired.confidence_interval(0.95)
    above, below = int(np.sum(differences > 0)), int(np.sum(differences < 0))
    return CurveComparison(
        mean=float(differences.mean()),
        sd=float(differences.std(ddof=1)),
        t=float(paired.statistic),
        p_t=float(paired.pvalue),
        low=float(interval.low),
        high=float(interval.high),
        p_wilcoxon=float(stats.wilcoxon(left, right).pvalue),
        above=above,
        below=below,
        p_sign=float(stats.binomtest(above, above + below).pvalue),
        variance_ratio_of_changes=float(changes[1].var(ddof=1) / changes[0].var(ddof=1)),
        p_f_of_changes=f_test(*changes),
        p_levene_of_changes=float(stats.levene(*changes, center="median").pvalue),
        p_swap_of_changes=swap_test_of_spread(*changes),
        p_f_of_levels=f_test(left, right),
    )


def f_test(left: ArrayLike, right: ArrayLike) -> float:
    """Return the two-sided p value of equal variances of two normal samples."""
    a, b = np.asarray(left, dtype=np.float64), np.asarray(right, dtype=np.float64)
    ratio = a.var(ddof=1) / b.var(ddof=1)
    law = stats.f(a.size - 1, b.size - 1)
    return float(min(1.0, 2 * min(law.cdf(ratio), law.sf(ratio))))


def swap_test_of_spread(left_N: ArrayLike, right_N: ArrayLike) -> float:
    """Return the exact p value of the difference of two standard deviations when partners may swap sides."""
    pairs = np.stack([np.asarray(left_N, dtype=np.float64), np.asarray(right_N, dtype=np.float64)])
    swaps = np.array(list(product((False, True), repeat=pairs.shape[1])))
    first, second = np.where(swaps, pairs[1], pairs[0]), np.where(swaps, pairs[0], pairs[1])
    gaps = np.abs(first.std(axis=1, ddof=1) - second.std(axis=1, ddof=1))
    return float(np.mean(gaps >= gaps[0] - 1e-12))  # row 0 swaps nothing


@dataclass(frozen=True, slots=True)
class FlatNoise:
    """Curves of `n` independent normal values with one mean: what no learning and no difference look like."""

    drawdown_draws: Values
    best_gap_draws: Values

    def chance_of_drawdown(self, at_least: float) -> float:
        """Return the share of flat curves that fall as far."""
        return float(np.mean(self.drawdown_draws >= at_least))

    def chance_of_best_gap(self, at_least: float) -> float:
        """Return the share of pairs of flat curves whose best values lie as far apart."""
        return float(np.mean(self.best_gap_draws >= at_least))

    @property
    def expected_drawdown(self) -> float:
        """Return the mean drawdown of a flat curve."""
        return float(self.drawdown_draws.mean())


def flat_noise(n: int, sd: float, generator: np.random.Generator, *, n_draws: int = 200_000) -> FlatNoise:
    """Return simulated flat curves of `n` values with standard deviation `sd`.

    The Monte Carlo error of a share is at most 0.5 / sqrt(n_draws), 0.0011 by default.
    """
    falls, gaps = [], []
    for start in range(0, n_draws, _NOISE_ROWS):
        shape = (min(_NOISE_ROWS, n_draws - start), n)
        one, other = generator.normal(0.0, sd, shape), generator.normal(0.0, sd, shape)
        falls.append(drawdowns(one))
        gaps.append(np.abs(one.max(axis=1) - other.max(axis=1)))
    return FlatNoise(np.concatenate(falls), np.concatenate(gaps))


def half_width(sd: float, n: int, degrees: int, level: float = 0.95) -> float:
    """Return half of the t interval of a mean of n values whose sd was estimated with `degrees` of freedom."""
    return float(stats.t.ppf((1 + level) / 2, degrees) * sd / math.sqrt(n))
