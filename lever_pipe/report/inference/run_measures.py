"""Endpoints that only a whole run has: extremes, spreads and first steps of its curves, its drift, its loss."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from lever_pipe.experiment.agent_config import WEIGHTS, AgentArm
from lever_pipe.report.inference.agent_runs import CEILING, SAME_TASKS_ERROR, AgentRuns, after_start, last_mean
from lever_pipe.report.inference.task_values import METRICS, REWARD
from lever_pipe.statistics.curves import drawdowns, excess_sd, first_reaching, trapezoid_weights

LAST_STEPS = 5
"""Training steps whose mean is the end of a run."""


def of_curve(runs: AgentRuns, arm: str, seed: int, mode: str) -> Iterator[tuple[str, float]]:
    """Yield the measures of a run's validation curve by name, without the mode; nothing without an evaluation.

    Without episodes the means of a curve are known for the whole run only, so they are among them.
    """
    curve = after_start(runs.validation(arm, seed, mode))
    if not curve:
        return
    values = np.array(list(curve.values()))
    spread = float(np.diff(values).std(ddof=1)) if values.size > 2 else math.nan
    error, fresh = (_error(runs, arm, seed, mode, metric) for metric in (SAME_TASKS_ERROR, "reward_se"))
    yield "trapezoid", float(trapezoid_weights(list(curve)) @ values)
    yield "last3", last_mean(curve, 3)
    yield "best_value", float(values.max())
    yield "best_step", float(max(curve, key=lambda step: (curve[step], -step)))
    yield "drawdown", float(drawdowns(values[None])[0])
    yield "sd_of_changes", spread
    yield "error", error
    yield "fresh_error", fresh
    yield "excess_sd", math.nan if math.isnan(spread + error) else excess_sd(spread, error)


def at_last(runs: AgentRuns, arm: str, seed: int, mode: str) -> Iterator[tuple[str, float]]:
    """Yield the last evaluation by metric."""
    for metric in METRICS:
        series = runs.validation(arm, seed, mode, metric)
        yield metric, series.get(runs.fact(arm, seed).executed_steps, math.nan)


def first_step(runs: AgentRuns, arm: str, seed: int, mode: str, threshold: float) -> float:
    """Return the first step after the start whose reward is at least `threshold`: inf if never, NaN if unknown."""
    curve = after_start(runs.validation(arm, seed, mode))
    if math.isnan(threshold) or not curve:
        return math.nan
    found = first_reaching(list(curve), list(curve.values()), threshold)
    return math.inf if found is None else found


def ceiling(runs: AgentRuns, arm: str, seed: int, mode: str) -> float:
    """Return the mean ceiling of the validation tasks; NaN where it is not known."""
    return last_mean(runs.validation(arm, seed, mode, CEILING), 1)


def best_of_arm(runs: AgentRuns, arm: str, mode: str) -> float:
    """Return the largest reward of a run's curve, mean over the seeds; NaN without an evaluation."""
    curves = [after_start(runs.validation(arm, seed, mode, REWARD)) for seed in runs.seeds(arm)]
    best = [max(curve.values()) for curve in curves if curve]
    return math.fsum(best) / len(best) if best else math.nan


def of_training(runs: AgentRuns, arm: AgentArm, seed: int) -> Iterator[tuple[str, float]]:
    """Yield drift, entropy, cumulative learning rate and loss shares by name."""
    for metric in ("kl", "entropy"):
        yield f"{metric}_end", last_mean(runs.training(arm.name, seed, metric), LAST_STEPS)
    rates = runs.training(arm.name, seed, "learning_rate")
    yield "cumulative_learning_rate", math.fsum(rates.values()) if rates else math.nan
    for term, share in loss_shares(runs, arm, seed).items():
        yield f"share_{term}", share


def loss_shares(runs: AgentRuns, arm: AgentArm, seed: int) -> dict[str, float]:
    """Return the share of each term's mean size over steps in the sum of all; NaN where a term was not measured."""
    penalty = runs.training(arm.name, seed, "kl_loss") or runs.training(arm.name, seed, "kl")
    terms = {
        "policy": (1.0, runs.training(arm.name, seed, "pg_loss")),
        "kl": (arm.kl, penalty),
        "entropy": (arm.entropy, runs.training(arm.name, seed, "entropy")),
    }
    sizes = dict.fromkeys(terms, 0.0)
    for term, (weight, of) in terms.items():
        if weight:
            scheduled = runs.training(arm.name, seed, WEIGHTS.get(term, ""))
            shares = {step: scheduled[step] / weight if scheduled else 1.0 for step in of}
            sizes[term] = weight * last_mean({step: abs(of[step]) * share for step, share in shares.items()}, len(of))
    total = math.fsum(sizes.values())
    return {term: size / total if total else math.nan for term, size in sizes.items()}


def _error(runs: AgentRuns, arm: str, seed: int, mode: str, metric: str) -> float:
    """Return the root mean square of a standard error over the evaluations after the start."""
    errors = np.array(list(after_start(runs.validation(arm, seed, mode, metric)).values()))
    return float(np.sqrt(np.mean(errors**2))) if errors.size else math.nan
