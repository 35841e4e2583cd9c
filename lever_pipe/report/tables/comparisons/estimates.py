"""Intervals of accuracies and paired comparisons of groups, as rows in percent and points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lever_pipe.base.seeding import generator
from lever_pipe.report.tables.comparisons.families import ComparisonFamily
from lever_pipe.report.tables.comparisons.per_question import Array, GroupScores, on_common_seeds
from lever_pipe.statistics.comparison import detectable, holm, sign_flip_p, t_p_values
from lever_pipe.statistics.crossed import (
    Bounds,
    Estimates,
    accuracy_bounds,
    bootstrap_bounds,
    difference_bounds,
    mean_accuracy,
    paired_difference,
    side_by_side,
)

Groups = Mapping[str, GroupScores]

SIGN_FLIP, STUDENT = "sign flip", "Student's t"
"""The two tests, as `comparisons.csv` names them."""
HOW_ONE_RUN = "p: exact sign flips over questions (permutation test); interval: bootstrap over questions."
HOW_SEVERAL_RUNS = (
    "p: Student's t on crossed runs and questions (Clark 1973, Satterthwaite); "
    "interval: bootstrap over questions, expanded for runs."
)
HOW_MIXED = (
    "p: Student's t on crossed runs and questions (Clark 1973, Satterthwaite) where a side has several runs, else "
    "exact sign flips over questions (permutation test); interval: bootstrap over questions, expanded for runs."
)
HOW_FEW_DIFFER = "Where 5 questions or fewer differ, the interval is widened to the exact binomial bound."
UNADJUSTED = "Intervals are not adjusted for the number of comparisons."


@dataclass(frozen=True, slots=True)
class Draws:
    """How questions are resampled; every set of questions has a stream of its own, which all cells over it share."""

    seed: int
    n_resamples: int

    def bounds(self, estimates: Estimates, *names: str | int) -> Bounds:
        """Return the bootstrap intervals of estimates over the questions that `names` name."""
        stream = generator(self.seed, "questions", *names)
        return bootstrap_bounds(estimates, generator=stream, n_resamples=self.n_resamples)

    def of_differences(self, estimates: Estimates, *names: str | int) -> Bounds:
        """Return the intervals of differences of accuracies, with the exact bound where few questions differ."""
        return difference_bounds(estimates, self.bounds(estimates, *names))


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
    """A line of `comparisons.csv`: left minus right in points; `p_holm` is adjusted for the family."""

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


class Compared(NamedTuple):
    """One comparison at C columns, before its family is known."""

    estimates: Estimates
    p: Array
    n_runs: int
    test: str


def method_of(tests: Iterable[str]) -> str:
    """Return how p values and intervals of differences were made, from the tests of a table's rows; none of no row."""
    used = set(tests)
    if not used:
        return ""
    how = HOW_MIXED if len(used) > 1 else HOW_ONE_RUN if used == {SIGN_FLIP} else HOW_SEVERAL_RUNS
    return f"{how} {HOW_FEW_DIFFER}"


def comparing_test(runs: Iterable[int]) -> str:
    """Return the test that policies of so many runs are compared by."""
    return SIGN_FLIP if max(runs, default=1) == 1 else STUDENT


def intervals(groups: Groups, samples: Sequence[int], draws: Draws) -> list[IntervalRow]:
    """Return the intervals of every group over every prefix of questions, at every shot count and their mean."""
    rows = []
    for n in samples:
        estimates, bounds = accuracies([group.accuracies[:, :n] for group in groups.values()], draws, n)
        numbers = zip(estimates.value, bounds.low, bounds.high, strict=True)
        for group in groups.values():
            for column in group.columns:
                value, low, high = (100 * float(number) for number in next(numbers))
                rows.append(IntervalRow(group.name, n, column, value, low, high, len(group.runs), n))
    return rows


def accuracies(blocks: Sequence[Array], draws: Draws, *names: str | int) -> tuple[Estimates, Bounds]:
    """Return accuracies and their intervals, side by side, of [S, N, C] blocks over the questions of `names`."""
    estimates = side_by_side([mean_accuracy(block) for block in blocks])
    return estimates, accuracy_bounds(estimates, draws.bounds(estimates, *names))


def comparisons(groups: Groups, families: Sequence[ComparisonFamily], draws: Draws) -> list[ComparisonRow]:
    """Return the comparisons of every family at every shot count and their mean, in the order of the families.

    Two trained groups are compared over the seeds that both have, where they have any in common.
    """
    rows: list[ComparisonRow] = []
    for n in dict.fromkeys(family.samples for family in families):
        rows += _over_prefix(groups, [family for family in families if family.samples == n], n, draws)
    order = {family.name: index for index, family in enumerate(families)}
    return _adjusted(sorted(rows, key=lambda row: order[row.family]), families)


def compare(left: GroupScores, right: GroupScores, chosen: NDArray[np.bool_] | slice, draws: Draws) -> Compared:
    """Return left - right over the chosen questions with its p values.

    Two single runs are compared by exchanging their answers, several by their variance. `n_runs` are the training runs
    of the side with fewer; a baseline is not trained, and counts only where both sides are baselines.
    """
    sides = left.accuracies[:, chosen], right.accuracies[:, chosen]
    estimates = paired_difference(*sides, same_runs=left.shares_seeds_with(right))
    trained = [side for side in (left, right) if side.is_trained]
    n_runs = min(len(side.runs) for side in trained or (left, right))
    test = comparing_test(map(len, sides))
    if test == STUDENT:
        return Compared(estimates, t_p_values(estimates), n_runs, test)
    differences_CN = (sides[0][0] - sides[1][0]).T
    names = (left.runs[0], right.runs[0], estimates.n_questions)
    streams = [generator(draws.seed, "signs", *names, column) for column in left.columns]
    p = [sign_flip_p(values, generator=stream) for values, stream in zip(differences_CN, streams, strict=True)]
    return Compared(estimates, np.array(p), n_runs, test)


def _over_prefix(groups: Groups, families: Sequence[ComparisonFamily], n: int, draws: Draws) -> list[ComparisonRow]:
    wanted = [(family.name, left, right) for family in families for left, right in family.pairs]
    sides = [on_common_seeds(groups[left], groups[right]) for _, left, right in wanted]
    found = [compare(left, right, slice(n), draws) for left, right in sides]
    estimates = side_by_side([compared.estimates for compared in found])
    bounds = draws.of_differences(estimates, n)
    numbers = zip(estimates.value, bounds.low, bounds.high, detectable(estimates), strict=True)
    rows = []
    for (family, left, right), compared in zip(wanted, found, strict=True):
        for column, p in zip(groups[left].columns, compared.p, strict=True):
            difference, low, high, least = (100 * float(number) for number in next(numbers))
            where = (family, left, right, n, column)
            numbers_of_row = (difference, low, high, float(p), 1.0, least)
            rows.append(ComparisonRow(*where, *numbers_of_row, compared.n_runs, n, compared.test))
    return rows


def _adjusted(rows: Iterable[ComparisonRow], families: Sequence[ComparisonFamily]) -> list[ComparisonRow]:
    together = {family.name: family.adjusted_with for family in families}
    adjusted = list(rows)
    for name in dict.fromkeys(together.values()):
        places = [index for index, row in enumerate(adjusted) if together[row.family] == name]
        for place, p in zip(places, holm([adjusted[place].p for place in places]), strict=True):
            adjusted[place] = adjusted[place]._replace(p_holm=float(p))
    return adjusted
