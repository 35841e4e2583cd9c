"""Every arm against the reference arm, paired by seed and task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from lever_pipe.report.tables.intention.agent_runs import MODES
from lever_pipe.report.tables.intention.endpoints import (
    PRIMARY,
    SECONDARY,
    Context,
    metric_of,
    primary_names,
    run_endpoints,
    task_endpoints,
)
from lever_pipe.report.tables.intention.estimates import (
    TaskDifference,
    paired_over_seeds,
    paired_over_tasks,
    unpaired_over_tasks,
)
from lever_pipe.report.tables.intention.task_values import NORMALISED, TaskMeans
from lever_pipe.statistics.comparison import holm

T = TypeVar("T")


class ArmComparisonRow(NamedTuple):
    """A line of `comparisons.csv`: arm minus reference; `p_holm` is adjusted for the arms at one endpoint.

    `n_seeds` are the common seeds; with one, the p value infers to further tasks for these very runs.
    """

    endpoint: str
    role: str
    arm: str
    reference: str
    difference: float
    low: float
    high: float
    p: float
    p_holm: float
    detectable: float
    test: str
    n_seeds: int
    n_tasks: int
    n_rollouts: int


def comparison_rows(context: Context) -> list[ArmComparisonRow]:
    """Return the comparisons at each primary endpoint, and at the trapezoid mean of the first one's kind of curve."""
    of_tasks = {arm: task_endpoints(context, arm) for arm in context.runs.arms}
    of_runs = {arm: run_endpoints(context, arm) for arm in context.runs.arms}
    reference = context.reference_arm
    names = dict.fromkeys(primary_names(context.evaluation.primary), PRIMARY)
    names |= {_trapezoid(context, of_runs[reference]): SECONDARY}
    rows: list[ArmComparisonRow] = []
    for name, role in names.items():
        family = [
            row
            for arm in context.runs.arms
            if arm != reference and (row := _row(context, name, role, arm, of_tasks, of_runs)) is not None
        ]
        rows += _adjusted(family)
    return rows


def _trapezoid(context: Context, known: Mapping[str, object]) -> str:
    modes = sorted(MODES, key=lambda mode: mode != context.evaluation.primary.modes[0])
    return next((name for mode in modes if (name := f"trapezoid_{mode}") in known), f"trapezoid_{modes[0]}")


def _row(
    context: Context,
    name: str,
    role: str,
    arm: str,
    of_tasks: Mapping[str, Mapping[str, Sequence[TaskMeans]]],
    of_runs: Mapping[str, Mapping[str, Sequence[float]]],
) -> ArmComparisonRow | None:
    """Return the comparison of an arm, or None where a side lacks the endpoint."""
    reference, sizes = context.reference_arm, (0, 0)
    if name in of_tasks[arm] and name in of_tasks[reference]:
        means = of_tasks[arm][name]
        found = _over_tasks(context, name, arm, of_tasks)
        sizes = (len(means[0].tasks), means[0].n_rollouts)
    elif name in of_runs[arm] and name in of_runs[reference]:
        common = context.runs.common_seeds(arm, reference)
        if not common:
            return None
        left, right = (_at(context, side, of_runs[side][name], common) for side in (arm, reference))
        found = paired_over_seeds(left, right)
    else:
        return None
    numbers = (found.value, found.low, found.high, found.p, math.nan, found.detectable)
    return ArmComparisonRow(name, role, arm, reference, *numbers, found.test, found.n_seeds, *sizes)


def _over_tasks(
    context: Context, name: str, arm: str, of_tasks: Mapping[str, Mapping[str, Sequence[TaskMeans]]]
) -> TaskDifference:
    common, metric, sides = context.runs.common_seeds(arm, context.reference_arm), metric_of(name), []
    for side in (arm, context.reference_arm):
        means = of_tasks[side][name]
        sides.append([of.values[metric] for of in (_at(context, side, means, common) if common else means)])
    compare = paired_over_tasks if common else unpaired_over_tasks
    return compare(sides[0], sides[1], context.draws, name, arm, are_shares=metric == NORMALISED)


def _at(context: Context, arm: str, by_seed: Sequence[T], common: Sequence[int]) -> list[T]:
    return [value for seed, value in zip(context.runs.seeds(arm), by_seed, strict=True) if seed in common]


def _adjusted(family: Sequence[ArmComparisonRow]) -> list[ArmComparisonRow]:
    tested = [row for row in family if not math.isnan(row.p)]
    adjusted = dict(zip((row.arm for row in tested), holm([row.p for row in tested]), strict=True))
    return [row._replace(p_holm=float(adjusted.get(row.arm, math.nan))) for row in family]
