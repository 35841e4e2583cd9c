"""Every arm against the reference arm, paired by seed and task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import scipy

from lever_pipe.experiment.agent_config import START_ARM
from lever_pipe.report.evidence import PRIMARY, SECONDARY, STUDENT
from lever_pipe.report.inference.endpoints import (
    Context,
    held_out,
    mean_over_seeds,
    metric_of,
    primary_names,
    run_endpoints,
    start_endpoints,
    task_endpoints,
)
from lever_pipe.report.inference.estimates import Difference, Sides, adjusted, differences
from lever_pipe.report.inference.task_values import NORMALISED, TaskMeans
from lever_pipe.statistics.curves import paired_t

T = TypeVar("T")
SERVED = "-served"
"""End of the name of a family of served agents."""
TEMPERATURES = "temperatures"
"""Family of the reference arm against the start policy, both at each temperature and greedy."""


class ArmComparisonRow(NamedTuple):
    """A line of `comparisons.csv`: arm minus reference; `p_holm` is adjusted for the arms of one `family`.

    `n_seeds` are the common seeds; with one, the p value infers to further tasks for these very runs. A family is an
    endpoint; where only some arms have several common seeds, those of one are `ENDPOINT-one-run`, and served agents are
    `ENDPOINT-served`. `left_value` and `right_value` are the means of the very runs that are compared.
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


class _Met(NamedTuple):
    """What an arm is compared by at one endpoint."""

    arm: str
    n_seeds: int
    n_tasks: int
    n_rollouts: int


def comparison_rows(context: Context) -> list[ArmComparisonRow]:
    """Return the comparisons at each primary endpoint."""
    of_tasks = {arm: task_endpoints(context, arm) for arm in context.runs.arms}
    of_runs = {arm: run_endpoints(context, arm) for arm in context.runs.arms}
    reference = context.reference_arm
    rows: list[ArmComparisonRow] = []
    for name in primary_names(context.evaluation.primary):
        if name in of_tasks[reference]:
            found = _over_tasks(context, name, {arm: of[name] for arm, of in of_tasks.items() if name in of})
        else:
            found = _over_runs(context, {arm: of[name] for arm, of in of_runs.items() if name in of})
        served = _of_served(context, name)
        family = adjusted([of.p for _, of in found], [met.n_seeds == 1 for met, _ in found])
        family += [(p_holm, SERVED) for p_holm, _ in adjusted([of.p for _, of in served], [True] * len(served))]
        for (met, of), (p_holm, suffix) in zip([*found, *served], family, strict=True):
            told: dict[str, Any] = {"endpoint": name, "role": PRIMARY, "reference": reference, "family": name + suffix}
            rows.append(ArmComparisonRow(p_holm=p_holm, **told, **met._asdict(), **of._asdict()))
    return rows


def sharpened(context: Context) -> list[ArmComparisonRow]:
    """Return the reference arm against the start policy in every decoding, where further temperatures are evaluated.

    A policy that training has merely made sharper gains nothing where the start policy is drawn from coldly, too.
    """
    if not context.evaluation.temperatures:
        return []
    primary, (left, right) = context.evaluation.primary, (context.reference_arm, START_ARM)
    ours, theirs = task_endpoints(context, left), start_endpoints(context)
    against_start = context._replace(reference_arm=right)
    found = [
        (name, *row)
        for name in (f"test_{primary.metric}_{mode}_{primary.checkpoint}" for mode in context.modes)
        for row in _over_tasks(against_start, name, {left: ours[name], right: theirs[name]})
    ]
    family = adjusted([of.p for *_, of in found], [False] * len(found))
    told: dict[str, Any] = {"role": SECONDARY, "reference": right, "family": TEMPERATURES}
    return [
        ArmComparisonRow(endpoint=name, p_holm=p_holm, **told, **met._asdict(), **of._asdict())
        for (name, met, of), (p_holm, _) in zip(found, family, strict=True)
    ]


def _of_served(context: Context, name: str) -> list[tuple[_Met, Difference]]:
    """Return every served agent against all runs of the reference arm, on the tasks that both have."""
    found = []
    for agent, episodes in context.served.items():
        theirs = held_out(context, episodes, agent)
        ours = task_endpoints(context._replace(episodes=episodes), context.reference_arm)
        if name in theirs and name in ours:
            found += _over_tasks(context, name, {agent: theirs[name], context.reference_arm: ours[name]})
    return found


def paired_over_seeds(left: Sequence[float], right: Sequence[float]) -> Difference:
    """Return left minus right of numbers that only whole runs have, by Student's t over the seeds that pair.

    With one seed there is neither an interval nor a p.
    """
    gaps = np.subtract(left, right)
    mean, low, high, n = mean_over_seeds(gaps)
    levels = float(np.mean(left)), float(np.mean(right))
    if np.isnan(low):
        return Difference(mean, low, high, np.nan, np.nan, "", *levels)
    shown, beyond = scipy.special.stdtrit(n - 1, (0.975, 0.8))
    return Difference(mean, low, high, paired_t(gaps)[1], float((high - mean) * (1 + beyond / shown)), STUDENT, *levels)


def _over_tasks(context: Context, name: str, of: Mapping[str, Sequence[TaskMeans]]) -> list[tuple[_Met, Difference]]:
    """Return every arm against the reference arm over tasks, over their common seeds where there are any."""
    reference, metric = context.reference_arm, metric_of(name)
    n = len(of[reference][0].tasks)
    if n < 2:  # nothing is known of further tasks
        return _over_runs(context, {arm: [float(one.values[metric].mean()) for one in by] for arm, by in of.items()})
    met, sides = [], []
    for arm in (arm for arm in of if arm != reference):
        common = context.runs.common_seeds(arm, reference)
        blocks = [
            np.stack([one.values[metric] for one in (_at(context, side, of[side], common) if common else of[side])])
            for side in (arm, reference)
        ]
        left, right = (block[..., None] for block in blocks)
        met.append(_Met(arm, min(len(left), len(right)), n, of[arm][0].n_rollouts))
        sides.append(Sides(left, right, bool(common), [(name, arm)]))
    compared = differences(sides, context.draws, n, are_shares=metric == NORMALISED)
    return [(one, row[0]) for one, row in zip(met, compared, strict=True)]


def _over_runs(context: Context, of: Mapping[str, Sequence[float]]) -> list[tuple[_Met, Difference]]:
    """Return every arm against the reference arm by numbers that only whole runs have, over their common seeds."""
    reference, found = context.reference_arm, []
    for arm in (arm for arm in of if arm != reference and reference in of):
        common = context.runs.common_seeds(arm, reference)
        if common:
            left, right = (_at(context, side, of[side], common) for side in (arm, reference))
            found.append((_Met(arm, len(common), 0, 0), paired_over_seeds(left, right)))
    return found


def _at(context: Context, arm: str, by_seed: Sequence[T], common: Sequence[int]) -> list[T]:
    """Return the values of the common seeds in their order, whatever the arm's own."""
    of_seed = dict(zip(context.runs.seeds(arm), by_seed, strict=True))
    return [of_seed[seed] for seed in common]
