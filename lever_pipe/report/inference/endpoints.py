"""Endpoints of the arms: primary ones, which the configuration fixes before any run, and secondary ones.

| endpoint | value of a run |
|---|---|
| `test_METRIC_MODE_CHECKPOINT` | mean over held-out tasks |
| `val_METRIC_MODE_CHECKPOINT` | the same on the validation tasks, if the primary endpoints use these |
| `kl_end`, `entropy_end` | mean of the last 5 steps |

The start policy has its own rows, as arm `start`, and so does each served agent. Each of them is a single policy, which
counts as both its last and its best checkpoint. A served agent's tasks exclude those that it or another policy has
lost; the tasks of the other policies do not depend on it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from lever_pipe.experiment.agent_evaluation import AgentEvaluation
from lever_pipe.experiment.agent_training import START_ARM
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
"""Number of last training steps whose mean is a run's end value."""
NAME = re.compile(
    r"(?:(?P<subset>test|val)_)?(?P<metric>.+?)(?:_(?P<mode>greedy|sampled(?:_at_[0-9.]+)?))?(?:_(?P<at>last|best))?"
)
"""Pattern of an endpoint's name."""


class EndpointRow(NamedTuple):
    """A line of `endpoints.csv`; without a seed it is the mean over seeds, with a 95 % interval if there is one."""

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
    """Inputs of the endpoints."""

    runs: AgentRuns
    episodes: EvaluatedEpisodes
    reference_arm: str
    evaluation: AgentEvaluation
    draws: Draws
    served: Mapping[str, EvaluatedEpisodes] = {}
    """By served agent: its episodes, together with the episodes of all policies that are not served."""

    @property
    def modes(self) -> list[str]:
        """Return all modes, starting with the primary endpoints' modes."""
        return list(dict.fromkeys((*self.evaluation.primary.modes, *MODES, *self.evaluation.by_temperature)))

    @property
    def primary_names(self) -> list[str]:
        """Return the primary endpoints of the configuration, one per mode."""
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
            # A policy without training runs has seed 0.
            seeds = map(str, context.runs.seeds(arm) or (0,))
            counts = len(by_seed[0].tasks), by_seed[0].n_rollouts
            for seed, runs in zip([*seeds, ""], [*([run] for run in by_seed), by_seed], strict=True):
                over_tasks[len(rows)] = runs
                rows.append(EndpointRow(arm, name, _role(context, name), seed, *(math.nan,) * 3, len(runs), *counts))
        others = ((name, values) for name, values in run_endpoints(context, arm).items() if name not in of_tasks)
        rows += [row for name, values in others for row in _run_rows(context, arm, name, values)]
    for metric in METRICS:
        blocks = {
            key: [run.values[metric] for run in runs]
            for key, runs in over_tasks.items()
            if taken_apart(rows[key].endpoint)["metric"] == metric
        }
        intervals = means_over_tasks(list(blocks.values()), context.draws, are_shares=metric == NORMALISED)
        for (key, block), interval in zip(blocks.items(), intervals, strict=True):
            # Shares are bounded in `means`, rewards by the ceiling of their tasks.
            if metric == REWARD:
                least, ceiling = min(float(values.min()) for values in block), over_tasks[key][0].ceiling
                interval = within_ceiling(interval, least, ceiling)
            rows[key] = rows[key]._replace(value=interval.value, low=interval.low, high=interval.high)
    return rows


def means_over_tasks(values: Sequence[Sequence[Array]], draws: Draws, *, are_shares: bool) -> list[Interval]:
    """Return means over seeds and tasks; with one seed the interval covers only tasks and rollouts.

    All means over the same number of tasks share their resamples, so that a mean does not depend on the others.

    Args:
        values: for each mean the [N] task means of its seeds; a single task gives no interval.
        draws: resampling of the tasks.
        are_shares: whether the values are between 0 and 1.
    """
    blocks = [np.stack(by_seed)[:, :, None] for by_seed in values]
    results = [Interval(float(block.mean()), math.nan, math.nan, len(block)) for block in blocks]
    for n in {block.shape[1] for block in blocks} - {1}:
        positions = [position for position, block in enumerate(blocks) if block.shape[1] == n]
        intervals = means([blocks[position] for position in positions], draws, n, are_shares=are_shares)
        for position, interval in zip(positions, intervals, strict=True):
            results[position] = interval
    return results


def mean_over_seeds(values: Sequence[float] | Array) -> Interval:
    """Return the mean of a value of whole runs, with a t interval over seeds; NaN ends with one seed.

    The largest value or the spread of a noisy curve grows with its noise, so resampled tasks would shift it.
    """
    mean, (*_, half) = float(np.mean(values)), paired_t(values)
    return Interval(mean, mean - half, mean + half, np.size(values))


def within_ceiling(mean: Interval, least: float, ceiling: float) -> Interval:
    """Return a mean reward with its interval cut to the possible range of a mean reward.

    Args:
        mean: with its interval.
        least: the smallest task mean; a reward below 0 needs a penalty, so 0 bounds the mean unless one occurs.
        ceiling: the largest mean that the tasks allow.
    """
    return mean._replace(low=max(mean.low, min(0.0, least)), high=min(mean.high, max(ceiling, mean.value)))


def task_endpoints(context: Context, arm: str) -> dict[str, list[TaskMeans]]:
    """Return the endpoints that are means over tasks, by name: the task means of each seed in order.

    An endpoint that a seed lacks is omitted. An untrained policy is evaluated on held-out tasks only.
    """
    seeds = context.runs.seeds(arm) or (0,)
    by_name = {name: [_evaluated(context, arm, seed, name) for seed in seeds] for name in context.names}
    return {name: known for name, runs in by_name.items() if len(known := [run for run in runs if run]) == len(seeds)}


def run_endpoints(context: Context, arm: str) -> dict[str, list[float]]:
    """Return the endpoints of whole runs, by name: one value per seed, in order; endpoints without any are omitted."""
    by_seed = [dict(_of_run(context, arm, seed)) for seed in context.runs.seeds(arm)]
    names = by_seed[0] if by_seed else ()
    by_name = {name: [endpoints.get(name, math.nan) for endpoints in by_seed] for name in names}
    return {name: values for name, values in by_name.items() if not all(map(math.isnan, values))}


def taken_apart(endpoint: str) -> dict[str, str]:
    """Return the subset, metric, mode and checkpoint (`at`) in an endpoint's name; absent parts are empty."""
    match = NAME.fullmatch(endpoint)
    return {part: text or "" for part, text in match.groupdict().items()} if match else {}


def _evaluated(context: Context, arm: str, seed: int, name: str) -> TaskMeans | None:
    """Return a run's evaluation for an endpoint; an untrained policy has one for both last and best."""
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
