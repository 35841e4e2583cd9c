"""Two evaluation curves against each other, and against what noise alone would show.

All tests take the evaluations as independent, so they are indicative; and one run an arm allows no statement about
training variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from lever_pipe.base.seeding import generator as stream_of
from lever_pipe.statistics.comparison import sign_flip_p
from lever_pipe.statistics.curves import drawdowns

Values = NDArray[np.float64]
SWAPS_AT_MOST = 16
"""Pairs up to which every swap of labels is enumerated (65,536 swaps); beyond, as many are drawn."""
_NOISE_ROWS = 50_000
_EQUAL = 1e-12
"""Differences of equal means are rounding only, about 1e-16."""


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
    p_flip: float  # sign flips of the differences
    variance_ratio_of_changes: float  # right / left
    p_f_of_changes: float
    p_levene_of_changes: float
    p_swap_of_changes: float
    p_f_of_levels: float


def compare_curves(left_N: ArrayLike, right_N: ArrayLike) -> CurveComparison:
    """Return the comparison of two curves over the same steps.

    Sign, flip and swap tests are exact, the latter two up to 16 and 17 values; the Levene test takes deviations from
    medians. Equal curves have p = 1.

    Args:
        left_N: [N] values, at least 5.
        right_N: [N] values at the same steps.

    Raises:
        ValueError: another shape or number of values.

    Source: Student 1908
    Source: Wilcoxon 1945
    Source: Brown 1974 (Levene test)
    Source: Fisher 1935 (randomisation test)
    """
    left, right = np.asarray(left_N, dtype=np.float64), np.asarray(right_N, dtype=np.float64)
    if left.shape != right.shape or left.ndim != 1 or left.size < 5:
        raise ValueError(f"need two vectors [N] with N >= 5, got {list(left.shape)} and {list(right.shape)}")
    differences = np.where(np.abs(left - right) > _EQUAL, left - right, 0.0)
    changes = np.diff(left), np.diff(right)
    above, below = int(np.sum(differences > 0)), int(np.sum(differences < 0))
    t, p_t, half = paired_t(differences)
    mean = float(differences.mean())
    return CurveComparison(
        mean=mean,
        sd=float(differences.std(ddof=1)),
        t=t,
        p_t=p_t,
        low=mean - half,
        high=mean + half,
        p_wilcoxon=float(scipy.stats.wilcoxon(differences).pvalue) if above + below else 1.0,
        above=above,
        below=below,
        p_sign=float(scipy.stats.binomtest(above, above + below).pvalue) if above + below else 1.0,
        p_flip=sign_flip_p(differences, generator=stream_of(0, "flips", differences.size)),
        variance_ratio_of_changes=_ratio(float(changes[1].var(ddof=1)), float(changes[0].var(ddof=1))),
        p_f_of_changes=f_test(*changes),
        p_levene_of_changes=_levene(*changes),
        p_swap_of_changes=swap_test_of_spread(*changes),
        p_f_of_levels=f_test(left, right),
    )


def f_test(left: ArrayLike, right: ArrayLike) -> float:
    """Return the two-sided p value of equal variances of two normal samples; 1 where neither varies, 0 where one does.

    Args:
        left: two or more values.
        right: two or more values.

    Source: Snedecor 1934 (F test)
    """
    a, b = np.asarray(left, dtype=np.float64), np.asarray(right, dtype=np.float64)
    if min(np.ptp(a), np.ptp(b)) <= _EQUAL:
        return float(max(np.ptp(a), np.ptp(b)) <= _EQUAL)
    ratio = a.var(ddof=1) / b.var(ddof=1)
    of = (a.size - 1, b.size - 1, ratio)
    return float(min(1.0, 2 * min(scipy.special.fdtr(*of), scipy.special.fdtrc(*of))))


def paired_t(differences_N: ArrayLike) -> tuple[float, float, float]:
    """Return t of a mean of zero, its two-sided p, and half of the mean's 95 % interval.

    All are NaN of fewer than two values, and of infinite ones.

    Args:
        differences_N: [N]; equal ones have p = 1 where they are 0, else 0.

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


def swap_test_of_spread(left_N: ArrayLike, right_N: ArrayLike) -> float:
    """Return the p value of the difference of two standard deviations when partners may swap sides.

    Exact up to `SWAPS_AT_MOST` pairs. Beyond, 65,535 swaps are drawn from a stream of their own, and the one seen
    counts with them.

    Args:
        left_N: [N].
        right_N: [N] partners.

    Source: Fisher 1935 (randomisation test)
    """
    pairs = np.stack([np.asarray(left_N, dtype=np.float64), np.asarray(right_N, dtype=np.float64)])
    n = pairs.shape[1]
    if n <= SWAPS_AT_MOST:
        swaps = np.array(list(product((False, True), repeat=n)))
    else:
        swaps = stream_of(0, "swaps", n).integers(0, 2, size=(2**SWAPS_AT_MOST, n)).astype(bool)
        swaps[0] = False
    first, second = np.where(swaps, pairs[1], pairs[0]), np.where(swaps, pairs[0], pairs[1])
    gaps = np.abs(first.std(axis=1, ddof=1) - second.std(axis=1, ddof=1))
    return float(np.mean(gaps >= gaps[0] - _EQUAL))  # row 0 swaps nothing


@dataclass(frozen=True, slots=True)
class FlatNoise:
    """Curves of `n` independent normal values with one mean: what no learning and no difference look like."""

    sd: float
    """Of one value."""
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
    """Return simulated flat curves.

    The Monte Carlo error of a share is at most 0.5 / sqrt(n_draws), 0.0011 by default.

    Args:
        n: values of a curve.
        sd: standard deviation of one value.
        generator: stream of the draws.
        n_draws: simulated pairs of curves.

    Source: this project
    """
    falls, gaps = [], []
    for start in range(0, n_draws, _NOISE_ROWS):
        shape = (min(_NOISE_ROWS, n_draws - start), n)
        one, other = generator.normal(0.0, sd, shape), generator.normal(0.0, sd, shape)
        falls.append(drawdowns(one))
        gaps.append(np.abs(one.max(axis=1) - other.max(axis=1)))
    return FlatNoise(sd, np.concatenate(falls), np.concatenate(gaps))


def _levene(left: Values, right: Values) -> float:
    if all(np.ptp(np.abs(side - np.median(side))) <= _EQUAL for side in (left, right)):
        return 1.0  # deviations that do not vary give no F
    return float(scipy.stats.levene(left, right, center="median").pvalue)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
