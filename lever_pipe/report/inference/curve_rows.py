"""Statistics of every run's validation curves, and of the documents' pair of arms against each other, seed by seed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

from lever_pipe.base.seeding import generator
from lever_pipe.report.inference.agent_runs import MODES, SAME_TASKS_ERROR, AgentRuns, Series, after_start
from lever_pipe.report.inference.endpoints import Context
from lever_pipe.statistics.curve_tests import FlatNoise, compare_curves, flat_noise
from lever_pipe.statistics.curves import curve_statistics

FEWEST = 5
"""Evaluations after the start below which a curve has no statistics."""
CHANGE, RELATIVE_CHANGE = "change_to_step", "relative_change_to_step"
"""Followed by `~` and the step."""


class StatisticRow(NamedTuple):
    """A line of `statistics.csv`; with `against` a number of arm minus that arm."""

    arm: str
    against: str
    seed: int
    mode: str
    statistic: str
    value: float


def statistic_rows(context: Context) -> list[StatisticRow]:
    """Return the statistics of every curve with enough evaluations."""
    runs, rows = context.runs, list[StatisticRow]()
    noises = {mode: _noise(context, mode) for mode in MODES}
    for mode in MODES:
        for arm in runs.arms:
            for seed in runs.seeds(arm):
                curve = after_start(runs.validation(arm, seed, mode))
                rows += [StatisticRow(arm, "", seed, mode, *of) for of in _of_curve(curve, noises[mode])]
        pair = context.document_arm, context.reference_arm
        for seed in runs.common_seeds(*pair):
            left, right = (after_start(runs.validation(arm, seed, mode)) for arm in pair)
            rows += [StatisticRow(*pair, seed, mode, *of) for of in _of_pair(left, right, noises[mode])]
    return rows


def _of_curve(curve: Series, noise: FlatNoise | None) -> Iterator[tuple[str, float]]:
    if len(curve) < FEWEST:
        return
    steps = list(curve)
    found = curve_statistics(steps, list(curve.values()))
    yield from ((name, float(of)) for name, of in dataclasses.asdict(found).items() if not isinstance(of, tuple))
    for step, change, share in zip(steps[1:], found.changes, found.relative_changes, strict=True):
        yield f"{CHANGE}~{step}", change
        yield f"{RELATIVE_CHANGE}~{step}", share
    if noise is not None:
        yield "flat_sd", noise.sd
        yield "flat_expected_drawdown", noise.expected_drawdown
        yield "flat_chance_of_drawdown", noise.chance_of_drawdown(found.drawdown)


def _of_pair(left: Series, right: Series, noise: FlatNoise | None) -> Iterator[tuple[str, float]]:
    steps = [step for step in left if step in right]
    if len(steps) < FEWEST:
        return
    sides = [[curve[step] for step in steps] for curve in (left, right)]
    found = compare_curves(*sides)
    yield from ((name, float(of)) for name, of in dataclasses.asdict(found).items())
    if noise is not None:
        yield "flat_chance_of_best_gap", noise.chance_of_best_gap(abs(max(sides[0]) - max(sides[1])))


def _noise(context: Context, mode: str) -> FlatNoise | None:
    """Return flat curves with the noise of the documents' pair of arms, or None where it is not known."""
    runs, pair = context.runs, (context.reference_arm, context.document_arm)
    lengths = [len(after_start(runs.validation(arm, seed, mode))) for arm in pair for seed in runs.seeds(arm)]
    sd = noise_of(runs, pair, mode)
    if math.isnan(sd) or not sd or min(lengths) < FEWEST:
        return None
    return flat_noise(min(lengths), sd, generator(context.evaluation.seed, "flat", mode))


def noise_of(runs: AgentRuns, arms: tuple[str, ...], mode: str) -> float:
    """Return the standard error of one evaluation on the same tasks, on other ones where that is not known."""
    for metric in (SAME_TASKS_ERROR, "reward_se"):
        errors = [runs.mean_of(arm, mode, metric) for arm in arms]
        if not any(map(math.isnan, errors)):
            return math.fsum(errors) / len(errors)
    return math.nan
