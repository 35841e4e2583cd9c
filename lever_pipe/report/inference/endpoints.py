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
from collections.abc import Iterator, Mapping
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd

from lever_pipe.experiment.agent_evaluation import AgentEvaluation
from lever_pipe.experiment.agent_training import START_ARM
from lever_pipe.report.evidence import PRIMARY, SECONDARY
from lever_pipe.report.inference.agent_runs import CEILING, MODES, N_SAMPLES, N_TASKS, TEST, VAL, AgentRuns, last_mean
from lever_pipe.report.inference.blocks import Block
from lever_pipe.report.inference.estimates import Draws, Interval, intervals
from lever_pipe.report.inference.task_values import METRICS, N_ROLLOUTS, NORMALISED, REWARD, EvaluatedEpisodes

CURRENT, LAST, BEST = "current", "last", "best"
"""Checkpoints: of a validation while training, and after it."""
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


class EndpointValues(NamedTuple):
    """An endpoint of one policy: the values of all its runs, over tasks or of whole runs."""

    block: Block
    n_tasks: int
    n_rollouts: int
    ceiling: float = math.inf
    """The largest mean reward that the tasks allow."""


def endpoint_rows(context: Context) -> list[EndpointRow]:
    """Return every endpoint of the start policy, of served agents and of every arm; means over tasks come first."""
    rows, values = list[EndpointRow](), list[EndpointValues]()
    for arm in (START_ARM, *context.served, *context.runs.arms):
        for name, endpoint in endpoints_of(context, arm).items():
            block, role = endpoint.block, PRIMARY if name in context.primary_names else SECONDARY
            # A policy without training runs has seed 0.
            single = {seed: block.of_runs([i]) for i, seed in enumerate(block.seeds or ("0",))}
            for seed, runs in {**single, "": block}.items():
                values.append(endpoint._replace(block=runs))
                counts = len(runs.runs), endpoint.n_tasks, endpoint.n_rollouts
                rows.append(EndpointRow(arm, name, role, seed, *(math.nan,) * 3, *counts))
    for are_shares in (False, True):
        positions = [i for i, row in enumerate(rows) if (_metric(row.endpoint) == NORMALISED) == are_shares]
        found = intervals([values[i].block for i in positions], context.draws, are_shares=are_shares)
        for i, (interval,) in zip(positions, found, strict=True):
            # Shares are bounded in `intervals`, rewards by the ceiling of their tasks.
            if _metric(rows[i].endpoint) == REWARD and values[i].block.n_units > 1:
                interval = within_ceiling(interval, float(values[i].block.values.min()), values[i].ceiling)
            rows[i] = rows[i]._replace(value=interval.value, low=interval.low, high=interval.high)
    return rows


def within_ceiling(mean: Interval, least: float, ceiling: float) -> Interval:
    """Return a mean reward with its interval cut to the possible range of a mean reward.

    Args:
        mean: with its interval.
        least: the smallest task mean; a reward below 0 needs a penalty, so 0 bounds the mean unless one occurs.
        ceiling: the largest mean that the tasks allow.
    """
    return mean._replace(low=max(mean.low, min(0.0, least)), high=min(mean.high, max(ceiling, mean.value)))


def endpoints_of(context: Context, arm: str) -> dict[str, EndpointValues]:
    """Return the endpoints of a policy by name: first over tasks, if every seed has them, then of whole runs."""
    seeds = context.runs.seeds(arm)
    runs = tuple(f"arm~{arm}/seed~{seed}" for seed in seeds) or (f"arm~{arm}",)
    endpoints: dict[str, EndpointValues] = {}
    for name in context.names:
        by_seed = [means for seed in seeds or (0,) if (means := _evaluated(context, arm, seed, name)) is not None]
        if len(by_seed) == len(runs):
            first, values = by_seed[0], np.stack([means[_metric(name)].to_numpy(dtype=float) for means in by_seed])
            counts = len(first), int(first[N_ROLLOUTS].iloc[0]), float(first[CEILING].mean())
            endpoints[name] = EndpointValues(Block(arm, runs, (name,), values[..., None]), *counts)
    whole = pd.DataFrame([dict(_of_run(context, arm, seed)) for seed in seeds]).dropna(axis="columns", how="all")
    for name in (str(name) for name in whole if name not in endpoints):
        mode = taken_apart(name)["mode"]
        sizes = (context.runs.validation(arm, seeds[0], mode, size) for size in (N_TASKS, N_SAMPLES))
        block = Block(arm, runs, (name,), whole[name].to_numpy(dtype=float)[:, None, None])
        endpoints[name] = EndpointValues(block, *(int(next(iter(series.values()), 0)) for series in sizes))
    return endpoints


def taken_apart(endpoint: str) -> dict[str, str]:
    """Return the subset, metric, mode and checkpoint (`at`) in an endpoint's name; absent parts are empty."""
    match = NAME.fullmatch(endpoint)
    return {part: text or "" for part, text in match.groupdict().items()} if match else {}


def _metric(endpoint: str) -> str:
    return taken_apart(endpoint)["metric"]


def _evaluated(context: Context, arm: str, seed: int, name: str) -> pd.DataFrame | None:
    """Return a run's means by task for an endpoint; an untrained policy has one evaluation for both last and best."""
    runs, episodes, parts = context.runs, context.served.get(arm, context.episodes), taken_apart(name)
    mode, checkpoint, is_trained = parts["mode"], parts["at"], arm in runs.arms
    if parts["subset"] == TEST:
        return episodes.of(arm, seed, TEST, mode, checkpoint if is_trained else LAST)
    if not is_trained:
        return None
    fact = runs.fact(arm, seed)
    step = fact.executed_steps if checkpoint == LAST else fact.best_step
    return episodes.of(arm, seed, VAL, mode, CURRENT, step)


def _of_run(context: Context, arm: str, seed: int) -> Iterator[tuple[str, float]]:
    runs, primary = context.runs, context.evaluation.primary
    if (primary.split, primary.checkpoint) == (VAL, LAST):
        for name, mode in zip(context.primary_names, primary.modes, strict=True):
            series = runs.validation(arm, seed, mode, primary.metric)
            yield name, series.get(runs.fact(arm, seed).executed_steps, math.nan)
    for metric in ("kl", "entropy"):
        yield f"{metric}_end", last_mean(runs.training(arm, seed, metric), LAST_STEPS)
