"""What the arms are judged by: primary endpoints, fixed in the configuration before any run, and secondary ones.

| endpoint | of a run |
|---|---|
| `test_METRIC_MODE_CHECKPOINT` | mean over held-out tasks |
| `val_METRIC_MODE_CHECKPOINT` | the same on the validation tasks, where the primary endpoints are these |
| `kl_end`, `entropy_end` | mean of the last 5 steps |

The start policy has rows of its own, as arm `start`, and so has each served agent: the one policy that each is stands
as its last and its best. A served agent's tasks are those that neither it nor another policy has lost, theirs do not
depend on it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from lever_pipe.experiment.agent_config import START_ARM, AgentEvaluation
from lever_pipe.report.evidence import PRIMARY, SECONDARY
from lever_pipe.report.inference.agent_runs import MODES, N_SAMPLES, N_TASKS, TEST, VAL, AgentRuns, last_mean
from lever_pipe.report.inference.estimates import Draws, Interval, means
from lever_pipe.report.inference.task_values import (
    BEST,
    LAST,
    METRICS,
    NORMALISED,
    REWARD,
    Array,
    EvaluatedEpisodes,
    TaskMeans,
)
from lever_pipe.statistics.curves import paired_t

LAST_STEPS = 5
"""Training steps whose mean is the end of a run."""
NAME = re.compile(
    r"(?:(?P<subset>test|val)_)?(?P<metric>.+?)(?:_(?P<mode>greedy|sampled(?:_at_[0-9.]+)?))?(?:_(?P<at>last|best))?"
)
"""Of an endpoint."""


class EndpointRow(NamedTuple):
    """A line of `endpoints.csv`; without a seed it is the mean over seeds, with a 95 % interval where there is one."""

    arm: str
    endpoint: str
    role: str
    seed: str
    value: float
    low: float
    high: float
    n_seeds: int
    n_tasks: int
    n_rollouts: int


class Context(NamedTuple):
    """What endpoints are made of."""

    runs: AgentRuns
    episodes: EvaluatedEpisodes
    reference_arm: str
    evaluation: AgentEvaluation
    draws: Draws
    served: Mapping[str, EvaluatedEpisodes] = {}
    """By served agent its episodes, with those of all that is no served agent."""

    @property
    def modes(self) -> list[str]:
        """Return all modes, those of the primary endpoints first."""
        return list(dict.fromkeys((*self.evaluation.primary.modes, *MODES, *self.evaluation.by_temperature)))

    @property
    def primary_names(self) -> list[str]:
        """Return the endpoints that the configuration names, one a mode."""
        primary = self.evaluation.primary
        return [f"{primary.split}_{primary.metric}_{mode}_{primary.checkpoint}" for mode in primary.modes]

    @property
    def names(self) -> list[str]:
        """Return the endpoints of evaluations, the primary ones first."""
        of_tests = product(self.modes, METRICS, (LAST, BEST))
        return list(dict.fromkeys([*self.primary_names, *("_".join((TEST, m, mode, at)) for mode, m, at in of_tests)]))


def endpoint_rows(context: Context) -> list[EndpointRow]:
    """Return every endpoint of the start policy, of served agents and of every arm; means over tasks come first."""
    rows, over_tasks = list[EndpointRow](), dict[int, Sequence[TaskMeans]]()
    for arm in (START_ARM, *context.served, *context.runs.arms):
        of_tasks = task_endpoints(context, arm)
        for name, by_seed in of_tasks.items():
            seeds = map(str, context.runs.seeds(arm) or (0,))
            counts = len(by_seed[0].tasks), by_seed[0].n_rollouts
            for seed, runs in zip([*seeds, ""], [*([run] for run in by_seed), by_seed], strict=True):
                over_tasks[len(rows)] = runs
                rows.append(EndpointRow(arm, name, _role(context, name), seed, *(math.nan,) * 3, len(runs), *counts))
        others = ((name, values) for name, values in run_endpoints(context, arm).items() if name not in of_tasks)
        rows += [row for name, values in others for row in _run_rows(context, arm, name, values)]
    for metric in METRICS:
        blocks = {
            location: [run.values[metric] for run in runs]
            for location, runs in over_tasks.items()
            if taken_apart(rows[location].endpoint)["metric"] == metric
        }
        intervals = means_over_tasks(list(blocks.values()), context.draws, are_shares=metric == NORMALISED)
        for (location, block), interval in zip(blocks.items(), intervals, strict=True):
            if metric == REWARD:
                least, ceiling = min(float(values.min()) for values in block), over_tasks[location][0].ceiling
                interval = within_ceiling(interval, least, ceiling)
            rows[location] = rows[location]._replace(value=interval.value, low=interval.low, high=interval.high)
    return rows


def means_over_tasks(values: Sequence[Sequence[Array]], draws: Draws, *, are_shares: bool) -> list[Interval]:
    """Return means over seeds and tasks; with one seed the interval is over tasks and rollouts alone.

    All that are over equally many tasks share their resamples, so that none depends on which others are asked for.

    Args:
        values: for each mean the [N] task means of its seeds; with a single task there is no interval.
        draws: how tasks are resampled.
        are_shares: the values lie within 0 and 1.
    """
    blocks = [np.stack(by_seed)[:, :, None] for by_seed in values]
    results = [Interval(float(block.mean()), math.nan, math.nan, len(block)) for block in blocks]
    for n in {block.shape[1] for block in blocks} - {1}:
        locations = [location for location, block in enumerate(blocks) if block.shape[1] == n]
        intervals = means([blocks[location] for location in locations], draws, n, are_shares=are_shares)
        for location, interval in zip(locations, intervals, strict=True):
            results[location] = interval
    return results


def mean_over_seeds(values: Sequence[float] | Array) -> Interval:
    """Return the mean of a number that only a whole run has, with a t interval over seeds; none with one seed.

    The largest value or the spread of a noisy curve grows with its noise, so resampled tasks would shift it.
    """
    mean, (*_, half) = float(np.mean(values)), paired_t(values)
    return Interval(mean, mean - half, mean + half, np.size(values))


def within_ceiling(mean: Interval, least: float, ceiling: float) -> Interval:
    """Return a mean reward with its interval cut to what a mean reward can be.

    Args:
        mean: with its interval.
        least: the smallest task mean; a reward below 0 needs a penalty, so that 0 bounds the mean unless one was seen.
        ceiling: the largest mean that the tasks allow.
    """
    return mean._replace(low=max(mean.low, min(0.0, least)), high=min(mean.high, max(ceiling, mean.value)))


def task_endpoints(context: Context, arm: str) -> dict[str, list[TaskMeans]]:
    """Return the endpoints that are means over tasks, by name: the task means of each seed in order.

    One that a seed lacks is left out. An untrained policy is evaluated on held-out tasks alone.
    """
    seeds = context.runs.seeds(arm) or (0,)
    by_name = {name: [_evaluated(context, arm, seed, name) for seed in seeds] for name in context.names}
    return {name: known for name, runs in by_name.items() if len(known := [run for run in runs if run]) == len(seeds)}


def run_endpoints(context: Context, arm: str) -> dict[str, list[float]]:
    """Return the endpoints of whole runs, by name: the value of each seed in order; one without any is left out."""
    by_seed = [dict(_of_run(context, arm, seed)) for seed in context.runs.seeds(arm)]
    names = by_seed[0] if by_seed else ()
    by_name = {name: [endpoints.get(name, math.nan) for endpoints in by_seed] for name in names}
    return {name: values for name, values in by_name.items() if not all(map(math.isnan, values))}


def taken_apart(endpoint: str) -> dict[str, str]:
    """Return the subset, metric, mode and checkpoint (`at`) that an endpoint's name tells; empty where it has none."""
    match = NAME.fullmatch(endpoint)
    return {part: text or "" for part, text in match.groupdict().items()} if match else {}


def _evaluated(context: Context, arm: str, seed: int, name: str) -> TaskMeans | None:
    """Return what a run was evaluated by; the one policy that an untrained one is stands as its last and its best."""
    runs, episodes, parts = context.runs, context.served.get(arm, context.episodes), taken_apart(name)
    mode, checkpoint, is_trained = parts["mode"], parts["at"], arm in runs.arms
    if parts["subset"] == TEST:
        return episodes.held_out(arm, seed, mode, checkpoint if is_trained else LAST)
    if not is_trained:
        return None
    fact = runs.fact(arm, seed)
    return episodes.validation(arm, seed, mode, fact.executed_steps if checkpoint == LAST else fact.best_step)


def _of_run(context: Context, arm: str, seed: int) -> Iterator[tuple[str, float]]:
    runs, primary = context.runs, context.evaluation.primary
    if (primary.split, primary.checkpoint) == (VAL, LAST):
        for name, mode in zip(context.primary_names, primary.modes, strict=True):
            series = runs.validation(arm, seed, mode, primary.metric)
            yield name, series.get(runs.fact(arm, seed).executed_steps, math.nan)
    for metric in ("kl", "entropy"):
        yield f"{metric}_end", last_mean(runs.training(arm, seed, metric), LAST_STEPS)


def _run_rows(context: Context, arm: str, name: str, values: Sequence[float]) -> Iterator[EndpointRow]:
    runs, role, mode, seeds = context.runs, _role(context, name), taken_apart(name)["mode"], context.runs.seeds(arm)
    sizes = (runs.validation(arm, seeds[0], mode, metric) for metric in (N_TASKS, N_SAMPLES))
    n_tasks, n_rollouts = (int(next(iter(series.values()), 0)) for series in sizes)
    for seed, value in zip(seeds, values, strict=True):
        yield EndpointRow(arm, name, role, str(seed), value, math.nan, math.nan, 1, n_tasks, n_rollouts)
    yield EndpointRow(arm, name, role, "", *mean_over_seeds(values), n_tasks, n_rollouts)


def _role(context: Context, name: str) -> str:
    return PRIMARY if name in context.primary_names else SECONDARY
