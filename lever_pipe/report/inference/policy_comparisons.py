"""Accuracies of groups in percent with their intervals, and the comparisons of families in points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lever_pipe.report.inference.blocks import Block, on_common_seeds
from lever_pipe.report.inference.estimates import Difference, Draws, Pair, adjusted, differences, intervals
from lever_pipe.report.inference.families import ComparisonFamily

Groups = Mapping[str, Block]
UNSCALED = ("p", "test")
"""Fields of a difference that are no accuracies."""


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


def interval_rows(groups: Groups, samples: Sequence[int], draws: Draws) -> list[IntervalRow]:
    """Return the intervals of every group over every prefix of questions, at every shot count and their mean."""
    return [
        IntervalRow(block.name, n, shots, 100 * mean.value, 100 * mean.low, 100 * mean.high, mean.n_runs, n)
        for n in samples
        for blocks in [[group.over(slice(n)) for group in groups.values()]]
        for block, means in zip(blocks, intervals(blocks, draws), strict=True)
        for shots, mean in zip(block.cells, means, strict=True)
    ]


def comparison_rows(groups: Groups, families: Sequence[ComparisonFamily], draws: Draws) -> list[ComparisonRow]:
    """Return the comparisons of every family, in the order of the families.

    Two trained groups are compared over their common seeds, if they have any. If only some comparisons of a family
    infer to further seeds, comparisons of one run form their own family, `NAME-one-run`.
    """
    rows: list[ComparisonRow] = []
    for n in dict.fromkeys(family.samples for family in families):
        of_prefix = [(family, *pair) for family in families if family.samples == n for pair in family.pairs]
        pairs = [
            paired(groups[left].at(family.shots), groups[right].at(family.shots), n)
            for family, left, right in of_prefix
        ]
        for (family, *_), pair, by_cell in zip(of_prefix, pairs, differences(pairs, draws), strict=True):
            rows += [_row(family, pair, *cell) for cell in zip(pair.left.cells, by_cell, strict=True)]
    order = {family.name: index for index, family in enumerate(families)}
    rows.sort(key=lambda row: order[row.family])
    together = {family.name: family.adjusted_with for family in families}
    p_holm = adjusted(
        [row.p for row in rows], [together[row.family] for row in rows], [row.n_runs == 1 for row in rows]
    )
    return [row._replace(family=row.family + suffix, p_holm=p) for row, (p, suffix) in zip(rows, p_holm, strict=True)]


def paired(left: Block, right: Block, n: int) -> Pair:
    """Return two groups over the first `n` questions and their common seeds."""
    left, right = on_common_seeds(left.over(slice(n)), right.over(slice(n)))
    return Pair(left, right, [(left.runs[0], right.runs[0], n, cell) for cell in left.cells])


def runs_compared(pair: Pair) -> int:
    """Return the training runs of the side with fewer runs; a baseline counts only if both sides are baselines."""
    trained = [side for side in pair[:2] if side.is_trained]
    return min(len(side.runs) for side in trained or pair[:2])


def _row(family: ComparisonFamily, pair: Pair, shots: str, difference: Difference) -> ComparisonRow:
    n = pair.left.n_units
    points = {name: v if name in UNSCALED else 100 * v for name, v in difference._asdict().items()}
    return ComparisonRow(
        family=family.name,
        left=pair.left.name,
        right=pair.right.name,
        samples=n,
        shots=shots,
        p_holm=1.0,
        n_runs=runs_compared(pair),
        n_questions=n,
        role=family.role,
        **points,
    )
