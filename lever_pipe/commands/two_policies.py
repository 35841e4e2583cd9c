"""Two policies side by side: accuracies with a paired test, training metrics, common demonstrations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lever_pipe.base.records import ExampleId
from lever_pipe.report.inference.estimates import Draws, differences, sides_of
from lever_pipe.report.inference.per_question import GroupScores

Chosen = Mapping[ExampleId, tuple[ExampleId, ...]]
"""The demonstrations of each query."""
Pairs = list[tuple[Chosen, Chosen]]


class AccuracyLine(NamedTuple):
    """Accuracies in percent at one shot count or their mean; left minus right in points, with its 95 % interval."""

    shots: str
    left: float
    right: float
    difference: float
    low: float
    high: float
    p: float
    detectable: float


class AgreementLine(NamedTuple):
    """Shares of queries, in percent, for which two policies choose the same demonstrations, mean over pairs of runs."""

    shots: int
    same_sequence: float
    same_set: float


class MetricLine(NamedTuple):
    """A training metric of two policies, mean over runs; None where it was not logged."""

    metric: str
    left: float | None
    right: float | None


def accuracy_lines(left: GroupScores, right: GroupScores, draws: Draws, *, same_questions: bool) -> list[AccuracyLine]:
    """Return both accuracies and their paired difference, at every shot count and their mean, over all questions.

    With other questions on either side nothing pairs, and the difference stands without interval and test.
    """
    if not same_questions:
        means = [100 * side.accuracies.mean(axis=(0, 1)) for side in (left, right)]
        absent = (math.nan,) * 4
        values = zip(left.columns, *means, strict=True)
        return [AccuracyLine(k, float(one), float(other), float(one - other), *absent) for k, one, other in values]
    lines = []
    (found,) = differences([sides_of(left, right, slice(None))], draws, left.accuracies.shape[1])
    for k, of in zip(left.columns, found, strict=True):
        one, other, gap = 100 * of.left_value, 100 * of.right_value, 100 * of.difference
        lines.append(AccuracyLine(k, one, other, gap, 100 * of.low, 100 * of.high, of.p, 100 * of.detectable))
    return lines


def pairs_of(left: Sequence[Chosen], right: Sequence[Chosen], *, same_runs: bool) -> Pairs:
    """Return what two policies choose, run by run with the same seeds, else every run beside every run."""
    return list(zip(left, right, strict=True)) if same_runs else [(a, b) for a in left for b in right]


def agreement_lines(pairs: Pairs, shots: Sequence[int]) -> list[AgreementLine]:
    """Return how often paired runs choose alike; one without demonstrations agrees with one without only."""
    lines = []
    for k in shots if pairs else ():
        common = [(a[query][:k], b[query][:k]) for a, b in pairs for query in a if query in b]
        same = [sum(one == other for one, other in common), sum(sorted(a) == sorted(b) for a, b in common)]
        lines.append(AgreementLine(k, *(100 * count / len(common) if common else math.nan for count in same)))
    return lines


def metric_lines(left: Sequence[Mapping[str, float]], right: Sequence[Mapping[str, float]]) -> list[MetricLine]:
    """Return the training metrics of both, in the order of the left one's."""
    sides = [_means(left), _means(right)]
    return [MetricLine(name, *(side.get(name) for side in sides)) for name in dict.fromkeys([*sides[0], *sides[1]])]


def _means(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for run in runs for name in run)
    return {name: sum(run[name] for run in runs) / len(runs) for name in names if all(name in run for run in runs)}
