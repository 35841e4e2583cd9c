"""Intervals and paired comparisons of blocks, for both studies.

Runs are crossed with questions in study `lever`, and with tasks in study `intention`. Rollouts are averaged within
their task, so that their noise is part of the spread of a run's task means. With S seeds, N tasks and K rollouts, the
variance of the overall mean is seeds / S + tasks / N + (seed x task + rollouts / K) / (S N). The mean squares of
`statistics.crossed` estimate it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy
from numpy.typing import NDArray

from lever_pipe.base.seeding import generator
from lever_pipe.report.evidence import OF_ONE_RUN, SIGN_FLIP, STUDENT
from lever_pipe.report.inference.blocks import Array, Block
from lever_pipe.statistics.comparison import detectable, holm, sign_flip_p, t_p_values
from lever_pipe.statistics.crossed import (
    Bounds,
    Estimates,
    accuracy_bounds,
    bootstrap_bounds,
    by_cluster,
    difference_bounds,
    mean_accuracy,
    paired_difference,
    side_by_side,
)
from lever_pipe.statistics.curves import paired_t


@dataclass(frozen=True, slots=True)
class Draws:
    """Resampling of units; every set of them has its own stream, which all cells over it share.

    Questions of the same image are resampled together, and tests exchange their answers together.
    """

    seed: int
    n_resamples: int
    over: str = "questions"
    images: Sequence[int] = ()
    """Image of each question; empty if each unit is a sample by itself."""

    def clusters(self, n: int) -> NDArray[np.int64] | None:
        """Return the image number of each of the first `n` questions, or None if no image has two."""
        images, numbers = np.unique(np.asarray(self.images[:n]), return_inverse=True)
        return numbers if len(images) < len(numbers) else None

    def bounds(self, estimates: Estimates, n: int) -> Bounds:
        """Return the bootstrap intervals of estimates over the first `n` units."""
        stream = generator(self.seed, self.over, n)
        return bootstrap_bounds(estimates, generator=stream, n_resamples=self.n_resamples)


class Pair(NamedTuple):
    """Both sides of a comparison over the same N units and C cells, left minus right."""

    left: Block
    right: Block
    streams: Sequence[tuple[str | int, ...]]
    """Names of C streams of random signs."""


class Interval(NamedTuple):
    """A mean with its 95 % interval over units, and over several runs if any; NaN for an unknown error."""

    value: float
    low: float
    high: float
    n_runs: int


class Difference(NamedTuple):
    """Left minus right at one cell with its 95 % interval; NaN for an unknown error."""

    difference: float
    low: float
    high: float
    p: float
    detectable: float
    test: str
    left_value: float
    right_value: float


def intervals(blocks: Sequence[Block], draws: Draws, *, are_shares: bool = True) -> list[list[Interval]]:
    """Return the mean of each block at each cell with its interval.

    Blocks over equally many units share their resamples, so that a mean does not depend on the others.

    Args:
        blocks: of the same units if they have equal N.
        draws: resampling of the units.
        are_shares: whether the values are between 0 and 1.
    """
    results: list[list[Interval]] = [[] for _ in blocks]
    for n in {block.n_units for block in blocks}:
        positions = [position for position, block in enumerate(blocks) if block.n_units == n]
        same = [blocks[position] for position in positions]
        if n > 1:
            found = _over_units(same, draws, are_shares=are_shares)
        else:
            found = ([over_runs(values_S) for values_S in block.values[:, 0].T] for block in same)
        for position, by_cell in zip(positions, found, strict=True):
            results[position] = by_cell
    return results


def _over_units(blocks: Sequence[Block], draws: Draws, *, are_shares: bool) -> Iterator[list[Interval]]:
    n, values = blocks[0].n_units, [block.values for block in blocks]
    clusters = draws.clusters(n)
    if clusters is not None:
        values = [by_cluster(block, clusters, block.mean(axis=(0, 1))) for block in values]
    estimates = side_by_side([mean_accuracy(block) for block in values])
    bounds = draws.bounds(estimates, n)
    bounds = accuracy_bounds(estimates, bounds) if are_shares else bounds
    numbers = zip(estimates.value, *bounds, strict=True)
    for block in blocks:
        ends = (map(float, next(numbers)) for _ in block.cells)
        yield [Interval(value, low, high, len(block.runs)) for value, low, high in ends]


def over_runs(values_S: Array) -> Interval:
    """Return the mean of a value of whole runs, with a t interval over the runs; NaN ends with one run.

    The largest value or the spread of a noisy curve grows with its noise, so resampled units would shift it.
    """
    mean, (*_, half) = float(np.mean(values_S)), paired_t(values_S)
    return Interval(mean, mean - half, mean + half, np.size(values_S))


def differences(pairs: Sequence[Pair], draws: Draws, *, are_shares: bool = True) -> list[list[Difference]]:
    """Return the C differences of each comparison.

    Two single runs are compared by exchanging their answers, which infers to further questions for these two runs only.
    If a side has several runs, the test is Student's t on runs crossed with questions. The interval, the p of Student's
    t and the detectable difference come from one error and its degrees of freedom. Each comparison has its own seed
    variance. A variance shared by unlike comparisons rejects true nulls (a KL_BETA of 3 varies less than one of 0), and
    few seeds cannot show which variances are equal (docs/report.md). Values of whole runs (one unit) have Student's t
    over the paired runs.

    Args:
        pairs: comparisons over the same N units.
        draws: resampling of the units.
        are_shares: whether the values are between 0 and 1.
    """
    if not pairs:
        return []
    n = pairs[0].left.n_units
    if n == 1:
        return [
            [paired_over_runs(left.values[:, 0, k], right.values[:, 0, k]) for k in range(len(left.cells))]
            for left, right, _ in pairs
        ]
    clusters = draws.clusters(n)
    compared = [_compared(pair, None) for pair in pairs]
    if clusters is not None:
        # Images give the same differences except for the last bit; keep the value over questions.
        of_images = [_compared(pair, clusters) for pair in pairs]
        compared = [replace(image, value=plain.value) for image, plain in zip(of_images, compared, strict=True)]
    estimates = side_by_side(compared)
    bounds = draws.bounds(estimates, n)
    bounds = difference_bounds(estimates, bounds) if are_shares else bounds
    numbers = zip(estimates.value, *bounds, detectable(estimates, bounds), strict=True)
    rows = []
    for pair, estimate in zip(pairs, compared, strict=True):
        test = STUDENT if max(len(pair.left.runs), len(pair.right.runs)) > 1 else SIGN_FLIP
        p_C = t_p_values(estimate) if test == STUDENT else _exchanged(pair, clusters, draws)
        levels = (side.values.mean(axis=(0, 1)) for side in pair[:2])
        row = []
        for p, left, right in zip(p_C, *levels, strict=True):
            value, low, high, least = map(float, next(numbers))
            row.append(Difference(value, low, high, float(p), least, test, float(left), float(right)))
        rows.append(row)
    return rows


def paired_over_runs(left_S: Array, right_S: Array) -> Difference:
    """Return left minus right of a value of whole runs; with one run there is neither an interval nor a p."""
    gaps = np.subtract(left_S, right_S)
    mean, low, high, n = over_runs(gaps)
    levels = float(np.mean(left_S)), float(np.mean(right_S))
    if np.isnan(low):
        return Difference(mean, low, high, math.nan, math.nan, "", *levels)
    t_95, t_80 = scipy.special.stdtrit(n - 1, (0.975, 0.8))
    # Half an interval is t_95 standard errors, and the difference with 80 % power is t_95 + t_80 of them.
    return Difference(mean, low, high, paired_t(gaps)[1], float((high - mean) * (1 + t_80 / t_95)), STUDENT, *levels)


def _compared(pair: Pair, clusters: NDArray[np.int64] | None) -> Estimates:
    sides = (side.values if clusters is None else by_cluster(side.values, clusters) for side in pair[:2])
    return paired_difference(*sides, same_runs=pair.left.shares_seeds_with(pair.right))


def _exchanged(pair: Pair, clusters: NDArray[np.int64] | None, draws: Draws) -> list[float]:
    """Return the p values of two single runs, cell by cell."""
    differences_NC = pair.left.values[0] - pair.right.values[0]
    if clusters is not None:  # sums of scores stay on the scores' lattice, so that p is exact; means by image may not
        differences_NC = np.stack([np.bincount(clusters, cell) for cell in differences_NC.T], axis=1)
    # Each pair has its own stream, so that its p does not depend on the other comparisons.
    return [
        sign_flip_p(values, generator=generator(draws.seed, "signs", *names))
        for values, names in zip(differences_NC.T, pair.streams, strict=True)
    ]


def adjusted(
    p_values: Sequence[float], families: Sequence[str], are_one_run: Sequence[bool]
) -> list[tuple[float, str]]:
    """Return p values after Holm's adjustment in their families, each with the suffix of its family's name.

    Comparisons of one run infer to further units only. Next to other comparisons they form their own family. NaN stays
    NaN and does not count.

    Args:
        p_values: of all comparisons.
        families: the family of each.
        are_one_run: whether each of them compares one run with one run.
    """
    tests = pd.DataFrame({"p": p_values, "family": families, "is_one_run": are_one_run}, dtype=object)
    is_mixed = tests.groupby("family")["is_one_run"].transform("nunique") > 1
    adjusted = pd.Series(math.nan, tests.index)
    for _, p in tests[tests["p"].notna()].groupby(["family", "is_one_run"])["p"]:
        adjusted[p.index] = holm(p.to_numpy(dtype=float))
    suffixes = (is_mixed & tests["is_one_run"].astype(bool) & adjusted.notna()).map({True: OF_ONE_RUN, False: ""})
    return list(zip(adjusted, suffixes, strict=True))
