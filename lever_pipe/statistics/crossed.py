"""Means of several runs over the same questions, and their differences: runs and questions are both samples.

Shapes: S runs (T of the other side), N questions, C cells that are estimated together, R resamples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from lever_pipe.base.shapes import ShapeError

Array = NDArray[np.float64]

_WEIGHTS_AT_A_TIME = 4_000_000
"""Maximum number of resampling weights in memory (32 MB); the samples do not depend on it."""
_DIFFERS = 1e-9
"""Threshold of a difference: means of equal scores differ by rounding only, about 1e-16."""
_NODES, _LEGENDRE = (np.polynomial.legendre.leggauss(48)[0] + 1) / 2, np.polynomial.legendre.leggauss(48)[1] / 2
_CHANCES, _WEIGHTS = _NODES**3, 3 * _NODES**2 * _LEGENDRE
"""Quadrature nodes, as cumulative probabilities of a mean square and denser near 0, and their weights."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """C estimates over the same N questions, with the components of their uncertainty."""

    value: Array
    """[C]"""
    error: Array
    """[C] standard error: over questions, and over runs if there are several."""
    scales: Array
    """[J, C] possible values of the error, weighted by `_WEIGHTS`, because few runs determine it poorly."""
    df: Array
    """[J, C] degrees of freedom of each scale, given by the questions."""
    by_question: Array
    """[N, C] mean over runs; its mean over questions is the value."""

    @property
    def n_questions(self) -> int:
        """Return N."""
        return len(self.by_question)


class Bounds(NamedTuple):
    """[C] lower and [C] upper ends of intervals."""

    low: Array
    high: Array


def mean_accuracy(accuracies_SNC: Array) -> Estimates:
    """Return the mean over S runs and N questions, with its error over both.

    A score of run s on question n is the sum of a mean, a run effect, a question effect and their interaction. With
    MSA, MSB and MSE, the mean squares of runs, of questions and of the rest, the variance of the overall mean is
    (max(MSB, MSE) + max(MSA - MSE, 0)) / (S N): no component is negative, and the error is never below the error over
    questions alone. With one run it is the standard error of N numbers, without any variation between runs.

    Few runs estimate MSA so poorly that Student's t with Satterthwaite's degrees of freedom rejects a true null in up
    to 8 % at 5 % and 1.6 % at .1 % (three runs; two: 13 and 6 %). Tests and intervals therefore average over the
    possible values MSA / w, with w distributed as a mean square of S - 1 degrees of freedom divided by its mean. The
    result is Student's t(S - 1) if all variance is between seeds and t(N - 1) if none is. In between, the test rejects
    a true null at every level no more often than the level allows.

    Args:
        accuracies_SNC: [S, N, C] a number for each run, question and cell; N at least 2.

    Raises:
        ShapeError: not of three dimensions, no run, or fewer than two questions.

    Source: Clark 1973 (crossed runs and questions)
    Source: Fisher 1935 (fiducial argument)
    """
    return _combined([_require_block("accuracies_SNC", accuracies_SNC)])


def paired_difference(left_SNC: Array, right_TNC: Array, *, same_runs: bool) -> Estimates:
    """Return mean(left) - mean(right) over the same questions, with its error.

    Question difficulty is common to both sides and cancels; with `same_runs` the effect of common seeds cancels too.
    The variance is computed as in `mean_accuracy`: from the differences if runs are paired, else with the runs of each
    side as a separate sample. A side of one run counts as fixed: the variation of its runs is unknown.

    Args:
        left_SNC: [S, N, C].
        right_TNC: [T, N, C], questions and cells in the same order.
        same_runs: run s of both sides shares its seed, so that S = T.

    Raises:
        ShapeError: the shapes of the sides do not fit, or as `mean_accuracy`.

    Source: Clark 1973 (crossed runs and questions)
    Source: Satterthwaite 1946
    Source: Fisher 1935 (fiducial argument)
    """
    left, right = _require_block("left_SNC", left_SNC), _require_block("right_TNC", right_TNC)
    if left.shape[1:] != right.shape[1:] or (same_runs and left.shape != right.shape):
        raise ShapeError(f"left and right must pair, got {list(left.shape)} and {list(right.shape)}")
    return _combined([left - right] if same_runs else [left, -right])


def by_cluster(values_SNC: Array, cluster_N: NDArray[np.int64], about_C: Array | float = 0.0) -> Array:
    """Return [S, M, C] values of M clusters with the mean of the N questions, in the order of the cluster numbers.

    Questions about one image are not independent, so images are the sample. A cluster's value is `about` plus M / N
    times the sum of its questions' deviations from `about`. For a mean, pass the mean (the linearised ratio of two
    sums, so that unequal numbers of questions per image add no spread). For a difference, pass 0.

    Args:
        values_SNC: [S, N, C].
        cluster_N: [N] the number of each question's cluster, 0 to M - 1.
        about_C: [C] or one for all.

    Source: Cochran 1977 (ratio estimator of clusters)
    Source: Miller 2024 (clustered standard errors of evaluations)
    """
    # `reduceat` adds up runs of neighbours, so the questions are sorted by cluster.
    order, (_, starts) = np.argsort(cluster_N, kind="stable"), np.unique(np.sort(cluster_N), return_index=True)
    sums: Array = np.add.reduceat((values_SNC - about_C)[:, order], starts, axis=1)
    return about_C + len(starts) / len(cluster_N) * sums


def side_by_side(parts: Sequence[Estimates]) -> Estimates:
    """Join estimates over the same questions, cells in order.

    Args:
        parts: at least one; of C1, C2, ... cells.

    Source: this project
    """
    names = ("value", "error", "scales", "df", "by_question")
    return Estimates(*(np.concatenate([getattr(part, name) for part in parts], axis=-1) for name in names))


def beyond(estimates: Estimates, distance_C: Array) -> Array:
    """Return [C] the probability that an estimate exceeds the truth by at least this distance.

    Args:
        estimates: C estimates.
        distance_C: [C] at least 0; an estimate without error has probability 0 at any positive distance.

    Source: Fisher 1935 (fiducial argument)
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        steps_JC = np.where(distance_C == 0, 0.0, distance_C / estimates.scales)
    chance_C: Array = _WEIGHTS @ scipy.special.stdtr(estimates.df, -steps_JC)
    return chance_C


def reach(estimates: Estimates, share: float) -> Array:
    """Return [C] the `share` quantile of an estimate's distance above the truth.

    Args:
        estimates: C estimates.
        share: in [.5, 1).

    Source: Fisher 1935 (fiducial argument)
    """
    scales, df = estimates.scales, estimates.df
    some_C = np.where(scales > 0, scales, np.inf).min(axis=0)
    least_C = np.where(some_C < np.inf, 1e-9 * some_C, 0.0)  # at exactly 0, scales without error would count half
    with np.errstate(divide="ignore"):
        peaks_JC = np.where(scales > 0, scipy.special.poch(df / 2, 0.5) / np.sqrt(np.pi * df) / scales, 0.0)
    found_C = np.maximum(least_C, scales.min(axis=0) * scipy.special.ndtri(share))
    for _ in range(100):  # Newton's steps from below converge monotonically: the tail probability is convex here
        steps_JC = np.divide(found_C, scales, out=np.zeros_like(scales), where=scales > 0)
        density_C = _WEIGHTS @ (peaks_JC * np.exp(-(df + 1) / 2 * np.log1p(steps_JC**2 / df)))
        excess_C = beyond(estimates, found_C) - (1 - share)
        step_C = np.divide(excess_C, density_C, out=np.zeros_like(found_C), where=density_C > 0)
        before_C, found_C = found_C, np.maximum(least_C, found_C + step_C)
        if (np.abs(found_C - before_C) <= 1e-13 * found_C).all():
            break
    return np.asarray(found_C)


def bootstrap_bounds(
    estimates: Estimates, *, generator: np.random.Generator, n_resamples: int = 10_000, level: float = 0.95
) -> Bounds:
    """Return bootstrap intervals: percentiles over resampled questions, expanded to the error of `estimates`.

    The quantiles (1 - level)/2 and (1 + level)/2 of the means of N questions drawn with replacement keep the skewness
    that a symmetric interval lacks. Their distance from the value is expanded by t(N - 1) / z, hardly more than 1 for
    many questions. The other part of `reach`, such as the seeds' variance, is added to the square of that distance. It
    is symmetric, because percentiles over a handful of runs would understate it. All cells share the resamples, so
    that no interval depends on the choice of the other cells.

    Coverage at 95 %, measured over 2,000 repetitions (`tests/unit/statistics/test_coverage.py`): 95 % for one run, and
    for three runs whose seeds vary by .7 points over 800 questions. If the variation of seeds dominates (5 points,
    three times the error over questions), 95 % for three and five runs, and 92 % for two; plain percentiles of three
    runs cover 74 %. For differences between paired runs, 97 % with seeds that vary by .7 points, and 99 % if seeds
    have no effect, because three runs cannot show that.

    Args:
        estimates: C estimates.
        generator: random stream of the resamples.
        n_resamples: R, at least 1.
        level: coverage in (0, 1).

    Raises:
        ValueError: `n_resamples` or `level` out of range.

    Source: Efron 1979 (bootstrap)
    Source: Hesterberg 2015 (expanded percentiles)
    """
    if n_resamples < 1 or not 0 < level < 1:
        raise ValueError(f"need n_resamples >= 1 and 0 < level < 1, got {n_resamples}, {level}")
    tails = np.array([(1 - level) / 2, (1 + level) / 2])
    deviations_RC = resampled_means(estimates.by_question, generator, n_resamples) - estimates.value
    percentile_2C = np.quantile(deviations_RC, tails, axis=0)
    n = estimates.n_questions
    t = scipy.special.stdtrit(n - 1, tails[1])
    # Resampled means have the variance with divisor N; the second factor changes it to N - 1.
    expansion = t / scipy.special.ndtri(tails[1]) * np.sqrt(n / (n - 1))
    questions_C = estimates.by_question.var(axis=0, ddof=1) / n
    rest_C = np.maximum(reach(estimates, tails[1]) ** 2 - t**2 * questions_C, 0.0)
    low_C, high_C = np.sqrt((expansion * percentile_2C) ** 2 + rest_C)
    return Bounds(estimates.value - low_C, estimates.value + high_C)


def accuracy_bounds(estimates: Estimates, bounds: Bounds, *, level: float = 0.95) -> Bounds:
    """Return intervals of accuracies, within [0, 1] and never of zero width.

    If all answers are right or all are wrong, resampling shows no spread. The exact binomial bound on N questions
    replaces that end of the interval.

    Args:
        estimates: of accuracies in [0, 1].
        bounds: their intervals.
        level: coverage in (0, 1).

    Source: Clopper 1934 (exact bound)
    """
    n, tail = estimates.n_questions, (1 - level) / 2
    low_C = np.where(estimates.by_question.min(axis=0) >= 1, tail ** (1 / n), bounds.low)
    high_C = np.where(estimates.by_question.max(axis=0) <= 0, 1 - tail ** (1 / n), bounds.high)
    return Bounds(np.clip(low_C, 0, 1), np.clip(high_C, 0, 1))


def difference_bounds(estimates: Estimates, bounds: Bounds, *, level: float = 0.95) -> Bounds:
    """Return intervals of differences of accuracies, at least as wide as few differing questions require.

    A difference is at most the share of all possible questions on which the left side is better, and at least minus
    the right side's share. Resampling shows only the sampled questions: without a differing one its interval has no
    width, and with a single one it ends near 0. The interval is therefore widened to the exact binomial bounds on
    these two shares if no exchange of the differing questions' answers could be rejected (2^(1 - k) > 1 - level,
    k <= 5 at 95 %). Without any differing question, the bounds are +-(1 - ((1 - level) / 2)^(1/N)). They cover new
    questions with at least the level's probability, for any scores in [0, 1]. If all questions differ by the same v,
    so does at least a share q = ((1 - level) / 2)^(1/N) of all possible ones. The rest may differ by anything:
    v q +- (1 - q).

    Args:
        estimates: of differences in [-1, 1].
        bounds: their intervals.
        level: coverage in (0, 1).

    Source: Clopper 1934 (exact bound)
    """
    positive_C, negative_C = ((sign * estimates.by_question > _DIFFERS).sum(axis=0) for sign in (1, -1))
    few_C = 2.0 ** (1 - positive_C - negative_C) > 1 - level
    most_positive_C, most_negative_C = (
        _largest_share(k_C, estimates.n_questions, level) for k_C in (positive_C, negative_C)
    )
    low_C = np.where(few_C, np.minimum(bounds.low, -most_negative_C), bounds.low)
    high_C = np.where(few_C, np.maximum(bounds.high, most_positive_C), bounds.high)
    alike_C, share = np.ptp(estimates.by_question, axis=0) <= _DIFFERS, ((1 - level) / 2) ** (1 / estimates.n_questions)
    low_C = np.where(alike_C, np.minimum(low_C, estimates.value * share - (1 - share)), low_C)
    high_C = np.where(alike_C, np.maximum(high_C, estimates.value * share + (1 - share)), high_C)
    return Bounds(np.clip(low_C, -1, 1), np.clip(high_C, -1, 1))


def n_differing(estimates: Estimates) -> NDArray[np.int64]:
    """Return [C] the number of questions on which the two sides of a difference differ, as means over runs.

    Args:
        estimates: of differences.

    Source: this project
    """
    count_C: NDArray[np.int64] = (np.abs(estimates.by_question) > _DIFFERS).sum(axis=0)
    return count_C


def resampled_means(questions_NC: Array, generator: np.random.Generator, n_resamples: int) -> Array:
    """Return the [R, C] means of N questions drawn with replacement, the same draws for every column.

    Args:
        questions_NC: [N, C].
        generator: random stream of the resamples.
        n_resamples: R.

    Source: Efron 1979 (bootstrap)
    """
    n = questions_NC.shape[0]
    rows = max(1, _WEIGHTS_AT_A_TIME // n)
    means = []
    for start in range(0, n_resamples, rows):
        r = min(rows, n_resamples - start)
        sampled_RN = generator.integers(n, size=(r, n)) + n * np.arange(r)[:, None]
        # Offset each resample's indices by N, so that one bincount counts all resamples.
        weights_RN = np.bincount(sampled_RN.ravel(), minlength=r * n).reshape(r, n)
        means.append(weights_RN.astype(np.float64) @ questions_NC / n)
    return np.concatenate(means)


def _require_block(name: str, values_SNC: Array) -> Array:
    block = np.asarray(values_SNC, dtype=np.float64)
    if block.ndim != 3 or block.shape[0] < 1 or block.shape[1] < 2:
        raise ShapeError(f"{name} must be [S, N, C] with S >= 1 and N >= 2, got {list(block.shape)}")
    return block


def _largest_share(count_C: NDArray[np.int64], n: int, level: float) -> Array:
    """Return the upper end of the exact interval of a share with this count among n questions."""
    share_C = scipy.stats.beta.ppf((1 + level) / 2, count_C + 1, np.maximum(n - count_C, 1))
    return np.where(count_C < n, share_C, 1.0)


def _combined(sides: Sequence[Array]) -> Estimates:
    """Return the estimates of a sum of means; the runs of each side are a separate sample.

    Mean squares of two sides with several runs are pooled, with Satterthwaite's degrees of freedom.
    """
    by_question_NC = np.sum([side.mean(axis=0) for side in sides], axis=0)
    n = by_question_NC.shape[0]
    of_questions_C = by_question_NC.var(axis=0, ddof=1) / n
    rest_C, runs_C, spread_C = (np.zeros_like(of_questions_C) for _ in range(3))
    for side in (side for side in sides if side.shape[0] > 1):
        s = side.shape[0]
        variance_C = side.mean(axis=1).var(axis=0, ddof=1) / s
        rest_C, runs_C = rest_C + _interaction(side) / (s * n), runs_C + variance_C
        spread_C = spread_C + variance_C**2 / (s - 1)
    df_C = np.divide(runs_C**2, spread_C, out=np.ones_like(runs_C), where=spread_C > 0)
    questions_C = np.maximum(of_questions_C, rest_C)
    quantiles_JC = 2 * scipy.special.gammaincinv(df_C / 2, _CHANCES[:, None]) / df_C
    variances_JC = questions_C + np.maximum(runs_C / quantiles_JC - rest_C, 0.0)
    share_JC = np.divide(questions_C, variances_JC, out=np.ones_like(variances_JC), where=variances_JC > 0)
    return Estimates(
        value=by_question_NC.mean(axis=0),
        error=np.sqrt(questions_C + np.maximum(runs_C - rest_C, 0.0)),
        scales=np.sqrt(variances_JC),
        # Satterthwaite with a given variance of the runs; the floor bounds the degrees of freedom.
        df=(n - 1) / np.maximum(share_JC, 1e-6) ** 2,
        by_question=by_question_NC,
    )


def _interaction(side_SNC: Array) -> Array:
    """Return the mean square of the interaction of runs and questions."""
    s, n = side_SNC.shape[:2]
    of_run_SC, of_question_NC = side_SNC.mean(axis=1), side_SNC.mean(axis=0)
    rest_SNC = side_SNC - of_run_SC[:, None] - of_question_NC[None] + side_SNC.mean(axis=(0, 1))
    squares_C: Array = (rest_SNC**2).sum(axis=(0, 1)) / ((s - 1) * (n - 1))
    return squares_C
