"""Intervals and paired comparisons for both studies; for groups also as rows in percent and points.

Runs are crossed with questions in study `lever`, and with tasks in study `intention`. Rollouts are averaged within
their task, so that their noise is part of the spread of a run's task means. With S seeds, N tasks and K rollouts, the
variance of the overall mean is seeds / S + tasks / N + (seed x task + rollouts / K) / (S N). The mean squares of
`statistics.crossed` estimate it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lever_pipe.base.seeding import generator
from lever_pipe.report.evidence import OF_ONE_RUN, SIGN_FLIP, STUDENT
from lever_pipe.report.inference.families import ComparisonFamily
from lever_pipe.report.inference.per_question import Array, GroupScores, on_common_seeds
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

Groups = Mapping[str, GroupScores]


@dataclass(frozen=True, slots=True)
class Draws:
    """Resampling of questions or tasks; every set of them has its own stream, which all cells over it share.

    Questions of the same image are resampled together, and tests exchange their answers together.
    """

    seed: int
    n_resamples: int
    over: str = "questions"
    images: Sequence[int] = ()
    """Image of each question; empty if each question is a sample by itself."""

    def clusters(self, n: int) -> NDArray[np.int64] | None:
        """Return the image number of each of the first `n` questions, or None if no image has two."""
        images, numbers = np.unique(np.asarray(self.images[:n]), return_inverse=True)
        return numbers if len(images) < len(numbers) else None

    def bounds(self, estimates: Estimates, *names: str | int) -> Bounds:
        """Return the bootstrap intervals of estimates over the questions identified by `names`."""
        stream = generator(self.seed, self.over, *names)
        return bootstrap_bounds(estimates, generator=stream, n_resamples=self.n_resamples)


class Sides(NamedTuple):
    """Both sides of a comparison at C columns, left minus right, over the same N questions."""

    left: Array
    """[S, N, C]"""
    right: Array
    """[T, N, C]"""
    same_runs: bool
    """Whether run s of both sides has the same seed, so that S = T."""
    streams: Sequence[tuple[str | int, ...]]
    """Names of C streams of random signs."""


class Difference(NamedTuple):
    """Left minus right at one column with its 95 % interval; NaN for an unknown error."""

    difference: float
    low: float
    high: float
    p: float
    detectable: float
    test: str
    left_value: float
    right_value: float

    def times(self, scale: float) -> dict[str, float | str]:
        """Return all fields by name, multiplied by `scale` except `p` and `test`."""
        unscaled = ("p", "test")
        return {name: value if name in unscaled else scale * value for name, value in self._asdict().items()}


class Interval(NamedTuple):
    """A mean with its 95 % interval over questions or tasks, and over several runs if any; NaN for an unknown error."""

    value: float
    low: float
    high: float
    n_runs: int


class IntervalRow(NamedTuple):
    """A line of `intervals.csv`: an accuracy in percent with its 95 % interval; `shots` is a count or `mean`."""

    group: str
    samples: int
    shots: str
    accuracy: float
    low: float
    high: float
    n_runs: int
    n_questions: int


class ComparisonRow(NamedTuple):
    """A line of `comparisons.csv`: left minus right in points; `p_holm` is adjusted for the family.

    `left_value` and `right_value` are the accuracies in percent of the compared runs only.
    """

    family: str
    left: str
    right: str
    samples: int
    shots: str
    difference: float
    low: float
    high: float
    p: float
    p_holm: float
    detectable: float
    n_runs: int
    n_questions: int
    test: str
    role: str
    left_value: float
    right_value: float


def intervals(groups: Groups, samples: Sequence[int], draws: Draws) -> list[IntervalRow]:
    """Return the intervals of every group over every prefix of questions, at every shot count and their mean."""
    rows = []
    for n in samples:
        cells = accuracies([group.over(slice(n)) for group in groups.values()], draws, n)
        rows += [IntervalRow(name, n, column, *numbers, n) for name, column, numbers in cells]
    return rows


def accuracies(
    groups: Sequence[GroupScores], draws: Draws, *names: str | int
) -> Iterator[tuple[str, str, tuple[float, float, float, int]]]:
    """Yield by group and column the accuracy in percent, its interval over the questions of `names`, and its runs."""
    cells = [(group.name, column) for group in groups for column in group.columns]
    for (name, column), mean in zip(cells, means([group.accuracies for group in groups], draws, *names), strict=True):
        yield name, column, (100 * mean.value, 100 * mean.low, 100 * mean.high, mean.n_runs)


def means(blocks: Sequence[Array], draws: Draws, *names: str | int, are_shares: bool = True) -> list[Interval]:
    """Return the means of [S, N, C] blocks, column by column, with their intervals over the questions of `names`.

    Args:
        blocks: over the same N questions, at least one.
        draws: resampling of the questions.
        names: identify the questions.
        are_shares: whether the values are between 0 and 1.
    """
    clusters = draws.clusters(blocks[0].shape[1])
    if clusters is not None:
        blocks = [by_cluster(block, clusters, block.mean(axis=(0, 1))) for block in blocks]
    estimates = side_by_side([mean_accuracy(block) for block in blocks])
    bounds = draws.bounds(estimates, *names)
    bounds = accuracy_bounds(estimates, bounds) if are_shares else bounds
    runs = np.repeat([len(block) for block in blocks], [block.shape[2] for block in blocks])
    columns = zip(estimates.value, bounds.low, bounds.high, runs, strict=True)
    return [Interval(float(value), float(low), float(high), int(n)) for value, low, high, n in columns]


def differences(
    pairs: Sequence[Sides], draws: Draws, *names: str | int, are_shares: bool = True
) -> list[list[Difference]]:
    """Return the C differences of each comparison.

    Two single runs are compared by exchanging their answers, which infers to further questions for these two runs only.
    If a side has several runs, the test is Student's t on runs crossed with questions. The interval, the p of Student's
    t and the detectable difference come from one error and its degrees of freedom. Each comparison has its own seed
    variance. A variance shared by unlike comparisons rejects true nulls (a KL_BETA of 3 varies less than one of 0), and
    few seeds cannot show which variances are equal (docs/report.md).

    Args:
        pairs: comparisons over the same N questions.
        draws: resampling of the questions.
        names: identify the questions.
        are_shares: whether the values are between 0 and 1.
    """
    if not pairs:
        return []
    clusters = draws.clusters(pairs[0].left.shape[1])
    compared = [paired_difference(sides.left, sides.right, same_runs=sides.same_runs) for sides in pairs]
    if clusters is not None:
        # Images give the same differences except for the last bit; keep the value over questions.
        of_images = [
            paired_difference(*(by_cluster(side, clusters) for side in sides[:2]), same_runs=sides.same_runs)
            for sides in pairs
        ]
        compared = [replace(image, value=plain.value) for image, plain in zip(of_images, compared, strict=True)]
    estimates = side_by_side(compared)
    bounds = draws.bounds(estimates, *names)
    bounds = difference_bounds(estimates, bounds) if are_shares else bounds
    numbers = zip(estimates.value, bounds.low, bounds.high, detectable(estimates, bounds), strict=True)
    rows = []
    for sides, estimate in zip(pairs, compared, strict=True):
        test = STUDENT if max(len(sides.left), len(sides.right)) > 1 else SIGN_FLIP
        p_C = t_p_values(estimate) if test == STUDENT else _exchanged(sides, draws)
        row = []
        for p, *levels in zip(p_C, *(side.mean(axis=(0, 1)) for side in sides[:2]), strict=True):
            value, low, high, least = map(float, next(numbers))
            row.append(Difference(value, low, high, float(p), least, test, *map(float, levels)))
        rows.append(row)
    return rows


def comparisons(groups: Groups, families: Sequence[ComparisonFamily], draws: Draws) -> list[ComparisonRow]:
    """Return the comparisons of every family, in the order of the families.

    Two trained groups are compared over their common seeds, if they have any. If only some comparisons of a family
    infer to further seeds, comparisons of one run form their own family, `NAME-one-run`.
    """
    rows: list[ComparisonRow] = []
    for n in dict.fromkeys(family.samples for family in families):
        rows += _over_prefix(groups, [family for family in families if family.samples == n], n, draws)
    order = {family.name: index for index, family in enumerate(families)}
    return _adjusted(sorted(rows, key=lambda row: order[row.family]), families)


def sides_of(left: GroupScores, right: GroupScores, chosen: NDArray[np.bool_] | slice) -> Sides:
    """Return two groups over the chosen questions."""
    blocks = left.accuracies[:, chosen], right.accuracies[:, chosen]
    names = (left.runs[0], right.runs[0], blocks[0].shape[1])
    return Sides(*blocks, left.shares_seeds_with(right), [(*names, column) for column in left.columns])


def adjusted(p_values: Sequence[float], are_one_run: Sequence[bool]) -> list[tuple[float, str]]:
    """Return p values after Holm's adjustment, each with the suffix of its family's name.

    Comparisons of one run infer to further questions only. Next to other comparisons they form their own family. NaN
    stays NaN and does not count.

    Args:
        p_values: of one family.
        are_one_run: whether each of them compares one run with one run.
    """
    results = [(math.nan, "")] * len(p_values)
    suffix = OF_ONE_RUN if len(set(are_one_run)) > 1 else ""
    for is_one_run in (False, True):
        positions = [i for i, p in enumerate(p_values) if are_one_run[i] == is_one_run and not math.isnan(p)]
        for position, p in zip(positions, holm([p_values[position] for position in positions]), strict=True):
            results[position] = float(p), suffix if is_one_run else ""
    return results


def _exchanged(sides: Sides, draws: Draws) -> list[float]:
    """Return the p values of two single runs, column by column."""
    differences_NC = sides.left[0] - sides.right[0]
    clusters = draws.clusters(len(differences_NC))
    if clusters is not None:  # sums of scores stay on the scores' lattice, so that p is exact; means by image may not
        differences_NC = np.stack([np.bincount(clusters, column) for column in differences_NC.T], axis=1)
    # Each pair has its own stream, so that its p does not depend on the other comparisons.
    return [
        sign_flip_p(values, generator=generator(draws.seed, "signs", *names))
        for values, names in zip(differences_NC.T, sides.streams, strict=True)
    ]


def runs_compared(left: GroupScores, right: GroupScores) -> int:
    """Return the training runs of the side with fewer runs; a baseline counts only if both sides are baselines."""
    trained = [side for side in (left, right) if side.is_trained]
    return min(len(side.runs) for side in trained or (left, right))


def _over_prefix(groups: Groups, families: Sequence[ComparisonFamily], n: int, draws: Draws) -> list[ComparisonRow]:
    pairs = [(family, *pair) for family in families for pair in family.pairs]
    met = [
        on_common_seeds(groups[left].at(family.shots), groups[right].at(family.shots)) for family, left, right in pairs
    ]
    sides = [sides_of(left, right, slice(n)) for left, right in met]
    return [
        ComparisonRow(
            family=family.name,
            left=left.name,
            right=right.name,
            samples=n,
            shots=shots,
            p_holm=1.0,
            n_runs=runs_compared(left, right),
            n_questions=n,
            role=family.role,
            **difference.times(100),  # type: ignore[arg-type]
        )
        for (family, *_), (left, right), columns in zip(pairs, met, differences(sides, draws, n), strict=True)
        for shots, difference in zip(left.columns, columns, strict=True)
    ]


def _adjusted(rows: Sequence[ComparisonRow], families: Sequence[ComparisonFamily]) -> list[ComparisonRow]:
    together = {family.name: family.adjusted_with for family in families}
    results = list(rows)
    for name in dict.fromkeys(together.values()):
        positions = [position for position, row in enumerate(rows) if together[row.family] == name]
        of_family = [rows[position] for position in positions]
        p_holm = adjusted([row.p for row in of_family], [row.n_runs == 1 for row in of_family])
        for position, (p, suffix) in zip(positions, p_holm, strict=True):
            results[position] = rows[position]._replace(family=rows[position].family + suffix, p_holm=p)
    return results
