"""Endpoints that only a whole run has: extremes and spread of its curves, its drift."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from lever_pipe.report.inference.agent_runs import AgentRuns, after_start, last_mean
from lever_pipe.report.inference.task_values import METRICS

LAST_STEPS = 5
"""Training steps whose mean is the end of a run."""


def of_curve(runs: AgentRuns, arm: str, seed: int, mode: str) -> Iterator[tuple[str, float]]:
    """Yield the measures of a run's validation curve by name, without the mode; nothing without an evaluation."""
    curve = after_start(runs.validation(arm, seed, mode))
    if not curve:
        return
    values = np.array(list(curve.values()))
    yield "best_value", float(values.max())
    yield "best_step", float(max(curve, key=lambda step: (curve[step], -step)))
    yield "sd_of_changes", float(np.diff(values).std(ddof=1)) if values.size > 2 else math.nan


def at_last(runs: AgentRuns, arm: str, seed: int, mode: str) -> Iterator[tuple[str, float]]:
    """Yield the last evaluation by metric."""
    for metric in METRICS:
        series = runs.validation(arm, seed, mode, metric)
        yield metric, series.get(runs.fact(arm, seed).executed_steps, math.nan)


def of_training(runs: AgentRuns, arm: str, seed: int) -> Iterator[tuple[str, float]]:
    """Yield drift and entropy at the end by name."""
    for metric in ("kl", "entropy"):
        yield f"{metric}_end", last_mean(runs.training(arm, seed, metric), LAST_STEPS)
