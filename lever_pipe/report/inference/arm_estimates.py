"""Means and paired differences of the arms, over seeds, tasks and rollouts, or over seeds alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from lever_pipe.report.inference.estimates import STUDENT, Difference, Draws, Interval, means
from lever_pipe.report.inference.task_values import Array


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


def within_ceiling(of: Interval, least: float, ceiling: float) -> Interval:
    """Return a mean reward's interval without what no mean reward can be.

    Args:
        of: the mean with its interval.
        least: the smallest task mean; a reward below 0 needs a penalty, so that 0 bounds the mean unless one was seen.
        ceiling: the largest mean that the tasks allow.
    """
    return of._replace(low=max(of.low, min(0.0, least)), high=min(of.high, max(ceiling, of.value)))


def mean_over_seeds(values: Sequence[float]) -> Interval:
    """Return the mean of a number that only a whole run has, with a t interval over seeds; none with one seed.

    The largest value or the spread of a noisy curve grows with its noise, so resampled tasks would shift it.
    """
    mean, half, n = float(np.mean(values)), math.nan, len(values)
    if n > 1 and not math.isnan(mean):
        half = float(stats.t.ppf(0.975, n - 1) * np.std(values, ddof=1) / math.sqrt(n))
    return Interval(mean, mean - half, mean + half, n)


def paired_over_seeds(left: Sequence[float], right: Sequence[float]) -> Difference:
    """Return left minus right of numbers that only whole runs have, by Student's t over the seeds that pair.

    With one seed there is neither an interval nor a p.
    """
    mean, low, high, n = mean_over_seeds([a - b for a, b in zip(left, right, strict=True)])
    levels = float(np.mean(left)), float(np.mean(right))
    if math.isnan(low):
        return Difference(mean, low, high, math.nan, math.nan, "", *levels)
    shown, beyond = (float(stats.t.ppf(of, n - 1)) for of in (0.975, 0.8))
    error = (high - low) / 2 / shown
    p = 2 * float(stats.t.sf(abs(mean) / error, n - 1)) if error else float(not mean)
    return Difference(mean, low, high, p, error * (shown + beyond), STUDENT, *levels)
