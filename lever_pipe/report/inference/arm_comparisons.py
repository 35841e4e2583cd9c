"""Every arm against the reference arm, paired by seed and task."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import scipy

from lever_pipe.experiment.agent_training import START_ARM
from lever_pipe.report.evidence import PRIMARY, SECONDARY, STUDENT
from lever_pipe.report.inference.agent_runs import TEST
from lever_pipe.report.inference.endpoints import (
    Context,
    mean_over_seeds,
    run_endpoints,
    taken_apart,
    task_endpoints,
)
from lever_pipe.report.inference.estimates import Difference, Sides, adjusted, differences
from lever_pipe.report.inference.task_values import NORMALISED, TaskMeans
from lever_pipe.statistics.curves import paired_t

T = TypeVar("T")
SERVED = "-served"
"""Suffix of the names of families of served agents."""
TEMPERATURES = "temperatures"
"""Family of the reference arm against the start policy, both greedy and at each temperature."""


class ArmComparisonRow(NamedTuple):
    """A line of `comparisons.csv`: arm minus reference; `p_holm` is adjusted for the arms of one `family`.

    `n_seeds` is the number of common seeds; with one, the p value infers to further tasks for these two runs only. A
    family is an endpoint. If only some arms have several common seeds, arms with one are in `ENDPOINT-one-run`. Served
    agents are in `ENDPOINT-served`. `left_value` and `right_value` are means of the compared runs only.
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
    family: str
    left_value: float
    right_value: float


def comparison_rows(context: Context) -> list[ArmComparisonRow]:
    """Return the comparisons at each primary endpoint."""
    of_tasks = {arm: task_endpoints(context, arm) for arm in context.runs.arms}
    of_runs = {arm: run_endpoints(context, arm) for arm in context.runs.arms}
    rows: list[ArmComparisonRow] = []
    for name in context.primary_names:
        if name in of_tasks[context.reference_arm]:
            family = _over_tasks(context, name, {arm: means[name] for arm, means in of_tasks.items() if name in means})
        else:
            family = _over_runs(context, name, {arm: runs[name] for arm, runs in of_runs.items() if name in runs})
        rows += _adjusted(family, [row.n_seeds == 1 for row in family])
        served = [row._replace(family=name + SERVED) for row in _of_served(context, name)]
        rows += _adjusted(served, [True] * len(served))
    return rows


def sharpened(context: Context) -> list[ArmComparisonRow]:
    """Return the reference arm against the start policy in every decoding, if further temperatures are evaluated.

    If training has only sharpened the policy, it gains nothing over the start policy at a low temperature.
    """
    if not context.evaluation.temperatures:
        return []
    primary, arms = context.evaluation.primary, (context.reference_arm, START_ARM)
    of_tasks = {arm: task_endpoints(context, arm) for arm in arms}
    names = [f"{TEST}_{primary.metric}_{mode}_{primary.checkpoint}" for mode in context.modes]
    against_start = context._replace(reference_arm=START_ARM)
    compared = [_over_tasks(against_start, name, {arm: of_tasks[arm][name] for arm in arms}) for name in names]
    rows = [row._replace(role=SECONDARY, family=TEMPERATURES) for group in compared for row in group]
    return _adjusted(rows, [False] * len(rows))


def _adjusted(rows: Sequence[ArmComparisonRow], are_one_run: Sequence[bool]) -> list[ArmComparisonRow]:
    """Return the comparisons of one family with their adjusted p values."""
    pairs = zip(rows, adjusted([row.p for row in rows], are_one_run), strict=True)
    return [row._replace(p_holm=p_holm, family=row.family + suffix) for row, (p_holm, suffix) in pairs]


def _of_served(context: Context, name: str) -> Iterator[ArmComparisonRow]:
    """Yield every served agent against all runs of the reference arm, on their common tasks."""
    reference = context.reference_arm
    for agent, episodes in context.served.items():
        served = task_endpoints(context, agent)
        # These episodes include the agent's, so both sides keep only tasks that neither has lost.
        ours = task_endpoints(context._replace(episodes=episodes), reference)
        if name in served and name in ours:
            yield from _over_tasks(context, name, {agent: served[name], reference: ours[name]})


def paired_over_seeds(left: Sequence[float], right: Sequence[float]) -> Difference:
    """Return left minus right of values of whole runs, with Student's t over the paired seeds.

    With one seed there is neither an interval nor a p.
    """
    gaps = np.subtract(left, right)
    mean, low, high, n = mean_over_seeds(gaps)
    levels = float(np.mean(left)), float(np.mean(right))
    if np.isnan(low):
        return Difference(mean, low, high, np.nan, np.nan, "", *levels)
    t_95, t_80 = scipy.special.stdtrit(n - 1, (0.975, 0.8))
    # Half an interval is t_95 standard errors, and the difference with 80 % power is t_95 + t_80 of them.
    return Difference(mean, low, high, paired_t(gaps)[1], float((high - mean) * (1 + t_80 / t_95)), STUDENT, *levels)


def _over_tasks(context: Context, name: str, runs: Mapping[str, Sequence[TaskMeans]]) -> list[ArmComparisonRow]:
    """Return every arm against the reference arm over tasks, and over their common seeds if there are any."""
    reference, metric = context.reference_arm, taken_apart(name)["metric"]
    n = len(runs[reference][0].tasks)
    if n < 2:  # a single task shows nothing about further tasks
        values = {arm: [float(run.values[metric].mean()) for run in by_seed] for arm, by_seed in runs.items()}
        return _over_runs(context, name, values)
    arms, sides = [arm for arm in runs if arm != reference], []
    for arm in arms:
        common = context.runs.common_seeds(arm, reference)
        left, right = (
            np.stack([run.values[metric] for run in (_at(context, side, runs[side], common) if common else runs[side])])
            for side in (arm, reference)
        )
        sides.append(Sides(left[..., None], right[..., None], bool(common), [(name, arm)]))
    compared = differences(sides, context.draws, n, are_shares=metric == NORMALISED)
    return [
        _row(context, name, arm, difference, (min(len(both.left), len(both.right)), n, runs[arm][0].n_rollouts))
        for arm, both, (difference,) in zip(arms, sides, compared, strict=True)
    ]


def _over_runs(context: Context, name: str, values: Mapping[str, Sequence[float]]) -> list[ArmComparisonRow]:
    """Return every arm against the reference arm by values of whole runs, over their common seeds."""
    reference, rows = context.reference_arm, []
    for arm in (arm for arm in values if arm != reference and reference in values):
        if common := context.runs.common_seeds(arm, reference):
            left, right = (_at(context, side, values[side], common) for side in (arm, reference))
            rows.append(_row(context, name, arm, paired_over_seeds(left, right), (len(common), 0, 0)))
    return rows


def _row(context: Context, name: str, arm: str, gap: Difference, sizes: tuple[int, int, int]) -> ArmComparisonRow:
    """Return a comparison before adjustment; `sizes` are its seeds, tasks and rollouts."""
    counts = dict(zip(("n_seeds", "n_tasks", "n_rollouts"), sizes, strict=True))
    names = {"endpoint": name, "role": PRIMARY, "arm": arm, "reference": context.reference_arm, "family": name}
    return ArmComparisonRow(p_holm=math.nan, **names, **counts, **gap._asdict())  # type: ignore[arg-type]


def _at(context: Context, arm: str, by_seed: Sequence[T], common: Sequence[int]) -> list[T]:
    """Return the values of the common seeds, in the order of `common`."""
    of_seed = dict(zip(context.runs.seeds(arm), by_seed, strict=True))
    return [of_seed[seed] for seed in common]
