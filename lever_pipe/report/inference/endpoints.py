"""What the arms are judged by: primary endpoints, fixed in the configuration before any run, and secondary ones.

| endpoint | of a run |
|---|---|
| `test_METRIC_MODE_CHECKPOINT` | mean over held-out tasks |
| `val_METRIC_MODE_CHECKPOINT` | the same on the validation tasks, at the start, the last step or the selected one |
| `gain_MODE` | last evaluation minus the start |
| `trapezoid_MODE`, `last3_MODE` | area under the curve by its span; mean of the last 3 evaluations |
| `best_value_MODE`, `best_step_MODE` | the largest evaluation and its step, of ties the first |
| `steps_to_SHARE_MODE` | first step at this share of the ceiling; `others_best`: at 0.95 of the other arm's best |
| `drawdown_MODE`, `sd_of_changes_MODE` | as in `statistics.curves` |
| `error_MODE`, `fresh_error_MODE` | standard error of an evaluation on the same tasks, and on other ones |
| `excess_sd_MODE` | what the former leaves of `sd_of_changes_MODE` |
| `kl_end`, `entropy_end` | mean of the last 5 steps |
| `cumulative_learning_rate` | sum over steps |
| `share_policy`, `share_kl`, `share_entropy` | of a term's mean size in that of all terms of the loss |

Curves begin after the start: the documents evaluated nothing there. A step that is never reached is infinite. The
start policy has rows of its own, as arm `start`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from lever_pipe.experiment.agent_config import START_ARM, AgentArm, AgentEvaluation, PrimaryEndpoint
from lever_pipe.report.evidence import PRIMARY, SECONDARY
from lever_pipe.report.inference import agent_columns as columns
from lever_pipe.report.inference import run_measures as measures
from lever_pipe.report.inference.agent_runs import MODES, AgentRuns, after_start
from lever_pipe.report.inference.arm_estimates import (
    mean_over_seeds,
    means_over_tasks,
    within_ceiling,
)
from lever_pipe.report.inference.estimates import Draws, Interval
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

GAIN = "gain"
START = "start"
OTHERS_BEST = 0.95
"""Share of the other arm's best value whose first step is reported."""
STEPS = ("best_step", "steps_to")
"""Beginnings of endpoints that are steps; their mean has no interval."""


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
    arms: Sequence[AgentArm]
    reference_arm: str
    document_arm: str
    evaluation: AgentEvaluation
    draws: Draws

    def arm(self, name: str) -> AgentArm:
        """Return an arm's settings."""
        return next(arm for arm in self.arms if arm.name == name)

    @property
    def modes(self) -> tuple[str, ...]:
        """Return all modes, those of the primary endpoints first."""
        return tuple(dict.fromkeys((*self.evaluation.primary.modes, *MODES)))

    def other(self, arm: str) -> str:
        """Return the arm that an arm is held against: the reference, and for the reference that of the documents."""
        return self.document_arm if arm == self.reference_arm else self.reference_arm


def primary_names(primary: PrimaryEndpoint) -> tuple[str, ...]:
    """Return the endpoints that the configuration names, one a mode."""
    return tuple(f"{primary.split}_{primary.metric}_{mode}_{primary.checkpoint}" for mode in primary.modes)


def endpoint_rows(context: Context) -> list[EndpointRow]:
    """Return every endpoint of the start policy and of every arm; means over tasks come first."""
    rows: list[EndpointRow] = []
    waiting: list[tuple[int, list[Array]]] = []
    ceilings: dict[int, float] = {}
    for arm in (START_ARM, *context.runs.arms):
        is_start = arm == START_ARM
        of_tasks = start_endpoints(context) if is_start else task_endpoints(context, arm)
        of_runs = {} if is_start else run_endpoints(context, arm)
        for name, means in of_tasks.items():
            for row, values in _task_rows(context, arm, name, means):
                if metric_of(name) == REWARD and not name.startswith(GAIN):
                    ceilings[len(rows)] = means[0].ceiling
                waiting.append((len(rows), values))
                rows.append(row)
        for name, of in of_runs.items():
            rows += [] if name in of_tasks else _run_rows(context, arm, name, of)
    for metric in METRICS:
        places = [(place, values) for place, values in waiting if metric_of(rows[place].endpoint) == metric]
        blocks = [values for _, values in places]
        found = means_over_tasks(blocks, context.draws, are_shares=metric == NORMALISED)
        for (place, values), interval in zip(places, found, strict=True):
            if place in ceilings:
                interval = within_ceiling(interval, min(float(of.min()) for of in values), ceilings[place])
            rows[place] = rows[place]._replace(value=interval.value, low=interval.low, high=interval.high)
    return rows


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
            found[f"test_{metric}_{mode}_{LAST}"] = episodes.held_out(START_ARM, 0, mode, LAST)
            seed = context.runs.seeds(reference)[0]
            found[f"val_{metric}_{mode}_{START}"] = episodes.validation(reference, seed, mode, 0)
    known = {name: [means] for name, means in found.items() if means is not None}
    return known if any(name.startswith("test") for name in known) else {}


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
        yield f"{GAIN}_{mode}", episodes.gain(arm, seed, mode)
        yield f"trapezoid_{mode}", episodes.trapezoid(arm, seed, mode)
        yield f"last3_{mode}", episodes.last_mean(arm, seed, mode, 3)


def _of_run(context: Context, arm: str, seed: int) -> Iterator[tuple[str, float]]:
    runs, evaluation = context.runs, context.evaluation
    for mode in MODES:
        for metric, value in measures.at_last(runs, arm, seed, mode):
            yield f"val_{metric}_{mode}_{LAST}", value
        for name, value in measures.of_curve(runs, arm, seed, mode):
            yield f"{name}_{mode}", value
        top = measures.ceiling(runs, arm, seed, mode)
        for share in evaluation.thresholds:
            yield f"steps_to_{share:g}_{mode}", measures.first_step(runs, arm, seed, mode, share * top)
        best = OTHERS_BEST * measures.best_of_arm(runs, context.other(arm), mode)
        yield f"steps_to_others_best_{mode}", measures.first_step(runs, arm, seed, mode, best)
    yield from measures.of_training(runs, context.arm(arm), seed)


def _task_rows(
    context: Context, arm: str, name: str, by_seed: Sequence[TaskMeans]
) -> Iterator[tuple[EndpointRow, list[Array]]]:
    """Yield the rows, which lack their interval, with what it is made of."""
    values = [of.values[metric_of(name)] for of in by_seed]
    counts = (len(by_seed[0].tasks), by_seed[0].n_rollouts, _evaluations(context.runs, arm, name))
    unknown, role = (math.nan, math.nan, math.nan), _role(context, name)
    seeds = (0,) if arm == START_ARM else context.runs.seeds(arm)
    for seed, of in zip(seeds, values, strict=True):
        yield EndpointRow(arm, name, role, str(seed), *unknown, 1, *counts), [of]
    yield EndpointRow(arm, name, role, "", *unknown, len(values), *counts), values


def _run_rows(context: Context, arm: str, name: str, values: Sequence[float]) -> Iterator[EndpointRow]:
    runs, role = context.runs, _role(context, name)
    mode, seeds = _mode_of(name), runs.seeds(arm)
    first: Mapping[str, Mapping[int, float]] = {
        metric: runs.validation(arm, seeds[0], mode, metric) if mode else {}
        for metric in (columns.N_TASKS, columns.N_SAMPLES)
    }
    sizes = tuple(int(next(iter(series.values()), 0)) for series in first.values())
    counts = (*sizes, _evaluations(runs, arm, name))
    for seed, value in zip(seeds, values, strict=True):
        yield EndpointRow(arm, name, role, str(seed), value, math.nan, math.nan, 1, *counts)
    mean = math.fsum(values) / len(values)
    whole = Interval(mean, math.nan, math.nan, len(seeds)) if name.startswith(STEPS) else mean_over_seeds(values)
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
    n = min(len(after_start(runs.validation(arm, seed, mode))) for seed in runs.seeds(arm))
    return {GAIN: 2, "last3": min(3, n)}.get(kind, n)
