"""Means over seeds, tasks and rollouts with intervals, and paired differences with their tests.

Rollouts are averaged within their task. What is left of their noise is part of the spread of a run's task means, so
that the crossed analysis of runs and tasks (`statistics.crossed`) covers seeds, tasks and rollouts: with S seeds, N
tasks and K rollouts the variance of the mean of all is seeds / S + tasks / N + (seed x task + rollouts / K) / (S N),
and its mean squares estimate just this sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from lever_pipe.base.seeding import generator
from lever_pipe.report.tables.intention.task_values import Array
from lever_pipe.statistics.comparison import SEEDS_AT_MOST, detectable, seed_flip_p, sign_flip_p, t_p_values
from lever_pipe.statistics.crossed import (
    Bounds,
    Estimates,
    accuracy_bounds,
    bootstrap_bounds,
    difference_bounds,
    mean_accuracy,
    paired_difference,
    side_by_side,
)

OVER_SEEDS, OVER_TASKS, STUDENT = "sign flips over seeds", "sign flips over tasks", "Student's t"
"""The tests, as `comparisons.csv` names them."""


class TaskInterval(NamedTuple):
    """A mean with its 95 % interval; NaN ends where nothing is known of its error."""

    value: float
    low: float
    high: float


class TaskDifference(NamedTuple):
    """A paired difference with its 95 % interval and p value; NaN where nothing is known of its error."""

    value: float
    low: float
    high: float
    p: float
    detectable: float
    test: str
    n_seeds: int


class TaskDraws(NamedTuple):
    """How tasks are resampled; every set of tasks has a stream of its own."""

    seed: int
    n_resamples: int

    def bounds(self, estimates: Estimates) -> Bounds:
        """Return the bootstrap intervals of estimates."""
        stream = generator(self.seed, "tasks", estimates.n_questions)
        return bootstrap_bounds(estimates, generator=stream, n_resamples=self.n_resamples)

    def intervals(self, estimates: Estimates, *, are_shares: bool) -> list[TaskInterval]:
        """Return the values of estimates with their intervals; those of shares lie within 0 and 1."""
        bounds = self.bounds(estimates)
        bounds = accuracy_bounds(estimates, bounds) if are_shares else bounds
        columns = (estimates.value, bounds.low, bounds.high)
        return [TaskInterval(*map(float, numbers)) for numbers in zip(*columns, strict=True)]


def means_over_tasks(of: Sequence[Sequence[Array]], draws: TaskDraws, *, are_shares: bool) -> list[TaskInterval]:
    """Return means over seeds and tasks; with one seed the interval is over tasks and rollouts alone.

    All that are over equally many tasks share their resamples, so that none depends on which others are asked for.

    Args:
        of: for each mean the [N] task means of its seeds; with a single task there is no interval.
        draws: how tasks are resampled.
        are_shares: the values lie within 0 and 1.
    """
    blocks = [np.stack(by_seed)[:, :, None] for by_seed in of]
    found = [TaskInterval(float(block.mean()), math.nan, math.nan) for block in blocks]
    for n in {block.shape[1] for block in blocks} - {1}:
        places = [place for place, block in enumerate(blocks) if block.shape[1] == n]
        estimates = side_by_side([mean_accuracy(blocks[place]) for place in places])
        for place, interval in zip(places, draws.intervals(estimates, are_shares=are_shares), strict=True):
            found[place] = interval
    return found


def within_ceiling(of: TaskInterval, least: float, ceiling: float) -> TaskInterval:
    """Return a mean reward's interval without what no mean reward can be.

    Args:
        of: the mean with its interval.
        least: the smallest task mean; a reward below 0 needs a penalty, so that 0 bounds the mean unless one was seen.
        ceiling: the largest mean that the tasks allow.
    """
    return of._replace(low=max(of.low, min(0.0, least)), high=min(of.high, max(ceiling, of.value)))


def mean_over_seeds(values: Sequence[float]) -> TaskInterval:
    """Return the mean of a number that only a whole run has, with a t interval over seeds; none with one seed.

    The largest value or the spread of a noisy curve grows with its noise, so resampled tasks would shift it.
    """
    of, n = np.asarray(values, dtype=np.float64), len(values)
    mean = float(of.mean())
    if n < 2 or math.isnan(mean):
        return TaskInterval(mean, math.nan, math.nan)
    half = float(stats.t.ppf(0.975, n - 1) * of.std(ddof=1) / math.sqrt(n))
    return TaskInterval(mean, mean - half, mean + half)


def paired_over_tasks(
    left: Sequence[Array], right: Sequence[Array], draws: TaskDraws, *names: str, are_shares: bool
) -> TaskDifference:
    """Return left minus right of runs that pair by seed, over the same tasks.

    Its p comes from sign flips over seeds where there are several, and over tasks with one.

    Args:
        left: [N] task means of each common seed.
        right: the same of the other arm, in the same order.
        draws: how tasks are resampled.
        names: of the comparison; they name the stream of drawn signs.
        are_shares: the values lie within 0 and 1.
    """
    differences_SN = np.stack(left) - np.stack(right)
    n_seeds = len(differences_SN)
    if differences_SN.shape[1] < 2:
        return paired_over_seeds([float(of[0]) for of in left], [float(of[0]) for of in right])
    estimates = paired_difference(np.stack(left)[..., None], np.stack(right)[..., None], same_runs=True)
    if 1 < n_seeds <= SEEDS_AT_MOST:
        p, test = seed_flip_p(differences_SN.mean(axis=1)), OVER_SEEDS
    elif n_seeds > 1:
        p, test = float(t_p_values(estimates)[0]), STUDENT
    else:
        p, test = sign_flip_p(differences_SN[0], generator=generator(draws.seed, "signs", *names)), OVER_TASKS
    return TaskDifference(
        *_interval(estimates, draws, are_shares=are_shares), p, float(detectable(estimates)[0]), test, n_seeds
    )


def unpaired_over_tasks(
    left: Sequence[Array], right: Sequence[Array], draws: TaskDraws, *names: str, are_shares: bool
) -> TaskDifference:
    """Return left minus right of runs without a common seed, over the same tasks.

    Args:
        left: [N] task means of each seed.
        right: the same of the other arm.
        draws: how tasks are resampled.
        names: of the comparison; they name the stream of drawn signs.
        are_shares: the values lie within 0 and 1.
    """
    n_seeds = min(len(left), len(right))
    sides = np.stack(left)[..., None], np.stack(right)[..., None]
    if sides[0].shape[1] < 2:
        gap = float(sides[0].mean() - sides[1].mean())
        return TaskDifference(gap, math.nan, math.nan, math.nan, math.nan, "", n_seeds)
    estimates = paired_difference(*sides, same_runs=False)
    if max(len(left), len(right)) > 1:
        p, test = float(t_p_values(estimates)[0]), STUDENT
    else:
        p, test = (
            sign_flip_p(sides[0][0, :, 0] - sides[1][0, :, 0], generator=generator(draws.seed, "signs", *names)),
            OVER_TASKS,
        )
    return TaskDifference(
        *_interval(estimates, draws, are_shares=are_shares), p, float(detectable(estimates)[0]), test, n_seeds
    )


def _interval(estimates: Estimates, draws: TaskDraws, *, are_shares: bool) -> TaskInterval:
    """Return a difference with its interval; one of shares is never narrower than what few differing tasks can tell."""
    bounds = draws.bounds(estimates)
    bounds = difference_bounds(estimates, bounds) if are_shares else bounds
    return TaskInterval(float(estimates.value[0]), float(bounds.low[0]), float(bounds.high[0]))


def paired_over_seeds(left: Sequence[float], right: Sequence[float]) -> TaskDifference:
    """Return left minus right of numbers that only whole runs have; without an interval or p with one seed."""
    differences = np.subtract(left, right)
    n, mean = len(differences), mean_over_seeds(differences.tolist())
    if n < 2 or math.isnan(mean.value):
        return TaskDifference(*mean, math.nan, math.nan, "", n)
    error = float(differences.std(ddof=1)) / math.sqrt(n)
    least = float(stats.t.ppf(0.975, n - 1) + stats.t.ppf(0.8, n - 1)) * error
    if n <= SEEDS_AT_MOST:
        return TaskDifference(*mean, seed_flip_p(differences), least, OVER_SEEDS, n)
    p = 2 * float(stats.t.sf(abs(mean.value) / error, n - 1)) if error else float(not mean.value)
    return TaskDifference(*mean, p, least, STUDENT, n)
