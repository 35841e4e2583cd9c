"""What the arms are judged by: primary endpoints, fixed in the configuration before any run, and secondary ones.

| endpoint | of a run |
|---|---|
| `test_METRIC_MODE_CHECKPOINT` | mean over held-out tasks |
| `val_METRIC_MODE_CHECKPOINT` | the same on the validation tasks, at the start, the last step or the selected one |
| `best_value_MODE`, `best_step_MODE` | the largest evaluation and its step, of ties the first |
| `sd_of_changes_MODE` | standard deviation of the changes from evaluation to evaluation |
| `kl_end`, `entropy_end` | mean of the last 5 steps |

Curves begin after the start: the documents evaluated nothing there. The
start policy has rows of its own, as arm `start`, and so has each served agent: the one policy that each is stands as
its last and its best. A served agent's tasks are those that neither it nor another policy has lost, theirs do not
depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lever_pipe.experiment.agent_config import START_ARM, AgentEvaluation, PrimaryEndpoint
from lever_pipe.report.evidence import PRIMARY, SECONDARY
from lever_pipe.report.inference.agent_runs import MODES, N_SAMPLES, N_TASKS, AgentRuns, after_start, last_mean
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

START = "start"
LAST_STEPS = 5
"""Training steps whose mean is the end of a run."""
BEST_STEP = "best_step"
"""Beginning of endpoints that are steps; their mean has no interval."""


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
    n_evaluations: int


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
    def modes(self) -> tuple[str, ...]:
        """Return all modes, those of the primary endpoints first."""
        return tuple(dict.fromkeys((*self.evaluation.primary.modes, *MODES, *self.evaluation.by_temperature)))


def primary_names(primary: PrimaryEndpoint) -> tuple[str, ...]:
    """Return the endpoints that the configuration names, one a mode."""
    return tuple(f"{primary.split}_{primary.metric}_{mode}_{primary.checkpoint}" for mode in primary.modes)


class _Waiting(NamedTuple):
    """A row whose mean over tasks is still to come, and what it is made of."""

    row: EndpointRow
    values: Sequence[Array]
    ceiling: float
    """Of a mean reward; infinite for others."""


def endpoint_rows(context: Context) -> list[EndpointRow]:
    """Return every endpoint of the start policy, of served agents and of every arm; means over tasks come first."""
    found: list[EndpointRow | _Waiting] = []
    untrained = {START_ARM: start_endpoints(context)}
    untrained |= {name: held_out(context, episodes, name) for name, episodes in context.served.items()}
    for arm in (*untrained, *context.runs.arms):
        of_tasks = untrained[arm] if arm in untrained else task_endpoints(context, arm)
        of_runs = {} if arm in untrained else run_endpoints(context, arm)
        found += [row for name, of in of_tasks.items() for row in _task_rows(context, arm, name, of)]
        others = ((name, of) for name, of in of_runs.items() if name not in of_tasks)
        found += [row for name, of in others for row in _run_rows(context, arm, name, of)]
    waiting = {i: of for i, of in enumerate(found) if isinstance(of, _Waiting)}
    intervals: dict[int, Interval] = {}
    for metric in METRICS:
        blocks = {i: of.values for i, of in waiting.items() if metric_of(of.row.endpoint) == metric}
        over_tasks = means_over_tasks(list(blocks.values()), context.draws, are_shares=metric == NORMALISED)
        intervals |= dict(zip(blocks, over_tasks, strict=True))
    return [of if isinstance(of, EndpointRow) else _with_mean(of, intervals[i]) for i, of in enumerate(found)]


def means_over_tasks(of: Sequence[Sequence[Array]], draws: Draws, *, are_shares: bool) -> list[Interval]:
    """Return means over seeds and tasks; with one seed the interval is over tasks and rollouts alone.

    All that are over equally many tasks share their resamples, so that none depends on which others are asked for.

    Args:
        of: for each mean the [N] task means of its seeds; with a single task there is no interval.
        draws: how tasks are resampled.
        are_shares: the values lie within 0 and 1.
    """
    blocks = [np.stack(by_seed)[:, :, None] for by_seed in of]
    found = [Interval(float(block.mean()), math.nan, math.nan, len(block)) for block in blocks]
    for n in {block.shape[1] for block in blocks} - {1}:
        places = [place for place, block in enumerate(blocks) if block.shape[1] == n]
        intervals = means([blocks[place] for place in places], draws, n, are_shares=are_shares)
        for place, interval in zip(places, intervals, strict=True):
            found[place] = interval
    return found


def mean_over_seeds(values: Sequence[float] | Array) -> Interval:
    """Return the mean of a number that only a whole run has, with a t interval over seeds; none with one seed.

    The largest value or the spread of a noisy curve grows with its noise, so resampled tasks would shift it.
    """
    mean, (*_, half) = float(np.mean(values)), paired_t(values)
    return Interval(mean, mean - half, mean + half, np.size(values))


def within_ceiling(of: Interval, least: float, ceiling: float) -> Interval:
    """Return a mean reward's interval without what no mean reward can be.

    Args:
        of: the mean with its interval.
        least: the smallest task mean; a reward below 0 needs a penalty, so that 0 bounds the mean unless one was seen.
        ceiling: the largest mean that the tasks allow.
    """
    return of._replace(low=max(of.low, min(0.0, least)), high=min(of.high, max(ceiling, of.value)))


def task_endpoints(context: Context, arm: str) -> dict[str, list[TaskMeans]]:
    """Return the endpoints that are means over tasks, by name: the task means of each seed in order.

    One that a seed lacks is left out.
    """
    by_seed = [dict(_of_tasks(context, arm, seed)) for seed in context.runs.seeds(arm)]
    found: dict[str, list[TaskMeans]] = {}
    for name in by_seed[0]:
        means = [of[name] for of in by_seed]
        known = [mean for mean in means if mean is not None]
        if len(known) == len(means):
            found[name] = known
    return found


def start_endpoints(context: Context) -> dict[str, list[TaskMeans]]:
    """Return those of the start policy, by the names that they have for arms; none without its held-out evaluation.

    Its validation is that of step 0, the same in every run.
    """
    episodes, reference = context.episodes, context.reference_arm
    found: dict[str, TaskMeans | None] = {}
    for mode in context.modes:
        for metric in METRICS:
            for checkpoint in (LAST, BEST):
                found[f"test_{metric}_{mode}_{checkpoint}"] = episodes.held_out(START_ARM, 0, mode, LAST)
            seed = context.runs.seeds(reference)[0]
            found[f"val_{metric}_{mode}_{START}"] = episodes.validation(reference, seed, mode, 0)
    known = {name: [means] for name, means in found.items() if means is not None}
    return known if any(name.startswith("test") for name in known) else {}


def held_out(context: Context, episodes: EvaluatedEpisodes, arm: str) -> dict[str, list[TaskMeans]]:
    """Return those of a served agent, by the same names."""
    found = {mode: episodes.held_out(arm, 0, mode, LAST) for mode in context.modes}
    known = {(mode, metric): of for mode, of in found.items() if of is not None for metric in METRICS}
    places = ((*of, checkpoint) for of in known for checkpoint in (LAST, BEST))
    return {f"test_{metric}_{mode}_{checkpoint}": [known[mode, metric]] for mode, metric, checkpoint in places}


def run_endpoints(context: Context, arm: str) -> dict[str, list[float]]:
    """Return the endpoints of whole runs, by name: the value of each seed in order; one without any is left out."""
    by_seed = [dict(_of_run(context, arm, seed)) for seed in context.runs.seeds(arm)]
    found = {name: [of.get(name, math.nan) for of in by_seed] for name in by_seed[0]}
    return {name: values for name, values in found.items() if not all(map(math.isnan, values))}


def metric_of(endpoint: str) -> str:
    """Return which metric of an episode an endpoint over tasks is a mean of."""
    return next((metric for metric in reversed(METRICS) if f"_{metric}_" in endpoint), REWARD)


def _of_tasks(context: Context, arm: str, seed: int) -> Iterator[tuple[str, TaskMeans | None]]:
    episodes, fact = context.episodes, context.runs.fact(arm, seed)
    steps = {START: 0, LAST: fact.executed_steps, BEST: fact.best_step}
    for mode in context.modes:
        for metric in METRICS:
            for checkpoint in (LAST, BEST):
                yield f"test_{metric}_{mode}_{checkpoint}", episodes.held_out(arm, seed, mode, checkpoint)
            for checkpoint, step in steps.items():
                yield f"val_{metric}_{mode}_{checkpoint}", episodes.validation(arm, seed, mode, step)


def _of_run(context: Context, arm: str, seed: int) -> Iterator[tuple[str, float]]:
    runs = context.runs
    for mode in MODES:
        for metric in METRICS:
            series = runs.validation(arm, seed, mode, metric)
            yield f"val_{metric}_{mode}_{LAST}", series.get(runs.fact(arm, seed).executed_steps, math.nan)
        curve = after_start(runs.validation(arm, seed, mode))
        if curve:
            values = np.array(list(curve.values()))
            yield f"best_value_{mode}", float(values.max())
            yield f"{BEST_STEP}_{mode}", float(max(curve, key=lambda step: (curve[step], -step)))
            yield f"sd_of_changes_{mode}", float(np.diff(values).std(ddof=1)) if values.size > 2 else math.nan
    for metric in ("kl", "entropy"):
        yield f"{metric}_end", last_mean(runs.training(arm, seed, metric), LAST_STEPS)


def _task_rows(context: Context, arm: str, name: str, by_seed: Sequence[TaskMeans]) -> Iterator[_Waiting]:
    values, first = [of.values[metric_of(name)] for of in by_seed], by_seed[0]
    counts = (len(first.tasks), first.n_rollouts, _evaluations(context.runs, arm, name))
    is_bounded = metric_of(name) == REWARD
    seeds = context.runs.seeds(arm) or (0,)
    for seed, of in zip([*map(str, seeds), ""], [*([one] for one in values), values], strict=True):
        row = EndpointRow(arm, name, _role(context, name), seed, *(math.nan,) * 3, len(of), *counts)
        yield _Waiting(row, of, first.ceiling if is_bounded else math.inf)


def _with_mean(of: _Waiting, interval: Interval) -> EndpointRow:
    if of.ceiling < math.inf:
        interval = within_ceiling(interval, min(float(one.min()) for one in of.values), of.ceiling)
    return of.row._replace(value=interval.value, low=interval.low, high=interval.high)


def _run_rows(context: Context, arm: str, name: str, values: Sequence[float]) -> Iterator[EndpointRow]:
    runs, role, mode = context.runs, _role(context, name), _mode_of(name)
    seeds = runs.seeds(arm)
    sizes = (runs.validation(arm, seeds[0], mode, of) for of in (N_TASKS, N_SAMPLES))
    counts = (*(int(next(iter(series.values()), 0)) for series in sizes), _evaluations(runs, arm, name))
    for seed, value in zip(seeds, values, strict=True):
        yield EndpointRow(arm, name, role, str(seed), value, math.nan, math.nan, 1, *counts)
    whole = mean_over_seeds(values)
    if name.startswith(BEST_STEP):
        whole = whole._replace(low=math.nan, high=math.nan)
    yield EndpointRow(arm, name, role, "", *whole, *counts)


def _role(context: Context, name: str) -> str:
    return PRIMARY if name in primary_names(context.evaluation.primary) else SECONDARY


def _mode_of(name: str) -> str:
    return next((mode for mode in MODES if f"_{mode}" in name), "")


def _evaluations(runs: AgentRuns, arm: str, name: str) -> int:
    """Return how many evaluations of a run an endpoint is made of; 0 for one of training steps."""
    mode, kind = _mode_of(name), name.partition("_")[0]
    if not mode or kind in ("test", "val"):
        return int(bool(mode))
    return min(len(after_start(runs.validation(arm, seed, mode))) for seed in runs.seeds(arm))
