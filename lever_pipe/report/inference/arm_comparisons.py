"""Every arm against the reference arm, paired by seed and task."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from lever_pipe.experiment.agent_training import START_ARM
from lever_pipe.report.evidence import PRIMARY, SECONDARY
from lever_pipe.report.inference.agent_runs import TEST
from lever_pipe.report.inference.blocks import on_common_seeds
from lever_pipe.report.inference.endpoints import Context, EndpointValues, endpoints_of, taken_apart
from lever_pipe.report.inference.estimates import Pair, adjusted, differences
from lever_pipe.report.inference.task_values import NORMALISED

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
    of_arms, reference = {arm: endpoints_of(context, arm) for arm in context.runs.arms}, context.reference_arm
    # The tasks of a served agent exclude those that it has lost, which changes the means of the reference arm.
    references = {
        agent: endpoints_of(context._replace(episodes=episodes), reference)
        for agent, episodes in context.served.items()
    }
    served = {agent: endpoints_of(context, agent) for agent in context.served}
    rows: list[ArmComparisonRow] = []
    for name in context.primary_names:
        rows += _against_reference(context, name, of_arms)
        for agent, of_reference in references.items():
            of_both = {agent: served[agent], reference: of_reference}
            rows += [row._replace(family=name + SERVED) for row in _against_reference(context, name, of_both)]
    return _adjusted(rows)


def sharpened(context: Context) -> list[ArmComparisonRow]:
    """Return the reference arm against the start policy in every decoding, if further temperatures are evaluated.

    If training has only sharpened the policy, it gains nothing over the start policy at a low temperature.
    """
    if not context.evaluation.temperatures:
        return []
    primary = context.evaluation.primary
    both = {arm: endpoints_of(context, arm) for arm in (context.reference_arm, START_ARM)}
    names = [f"{TEST}_{primary.metric}_{mode}_{primary.checkpoint}" for mode in context.modes]
    against_start = context._replace(reference_arm=START_ARM)
    compared = (row for name in names for row in _against_reference(against_start, name, both))
    return _adjusted([row._replace(role=SECONDARY, family=TEMPERATURES) for row in compared])


def _against_reference(
    context: Context, name: str, of_arms: Mapping[str, Mapping[str, EndpointValues]]
) -> Iterator[ArmComparisonRow]:
    """Yield the comparisons of every arm that has the endpoint over the same units, before adjustment.

    Values over tasks are compared over the common seeds if there are any, values of whole runs over these alone.
    """
    reference = of_arms[context.reference_arm].get(name)
    if reference is None:
        return
    endpoints, pairs = list[EndpointValues](), list[Pair]()
    for arm, of_arm in of_arms.items():
        if arm != context.reference_arm and name in of_arm:
            left, right = on_common_seeds(of_arm[name].block, reference.block)
            if left.n_units == right.n_units and (left.n_units > 1 or left.shares_seeds_with(right)):
                endpoints.append(of_arm[name])
                pairs.append(Pair(left, right, [(name, arm)]))
    compared = differences(pairs, context.draws, are_shares=taken_apart(name)["metric"] == NORMALISED)
    for endpoint, pair, (difference,) in zip(endpoints, pairs, compared, strict=True):
        is_over_tasks = pair.left.n_units > 1
        yield ArmComparisonRow(
            endpoint=name,
            role=PRIMARY,
            arm=endpoint.block.name,
            reference=context.reference_arm,
            p_holm=math.nan,
            n_seeds=min(len(pair.left.runs), len(pair.right.runs)),
            n_tasks=endpoint.n_tasks if is_over_tasks else 0,
            n_rollouts=endpoint.n_rollouts if is_over_tasks else 0,
            family=name,
            **difference._asdict(),
        )


def _adjusted(rows: list[ArmComparisonRow]) -> list[ArmComparisonRow]:
    p_holm = adjusted([row.p for row in rows], [row.family for row in rows], [row.n_seeds == 1 for row in rows])
    return [row._replace(p_holm=p, family=row.family + suffix) for row, (p, suffix) in zip(rows, p_holm, strict=True)]
