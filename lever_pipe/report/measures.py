"""Measures of a curve, and the tests of a measure's difference between two published curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from lever_pipe.base.seeding import generator
from lever_pipe.statistics.curves import FlatNoise, drawdowns, f_test, first_reaching, flat_noise

Values = NDArray[np.float64]
FEWEST = 5
"""Minimum number of epochs or evaluations of a curve."""
NOISE_SD = 0.13
"""Standard error of a published evaluation on other tasks, if each detail is found with the same probability."""


def _steps_to(steps: Values, values: Values, thresholds: Sequence[float]) -> float:
    """Return the mean first step that reaches each threshold; an unreached one counts as the next evaluation."""
    reached = [first_reaching(steps, values, threshold) for threshold in thresholds]
    return fmean(2 * steps[-1] - steps[-2] if step is None else step for step in reached)


def _slowing(steps: Values, values: Values, _: Sequence[float]) -> float:
    """Return the growth per step up to the middle value minus the growth per step after it."""
    i = len(steps) // 2
    return float((values[i] - values[0]) / (steps[i] - steps[0]) - (values[-1] - values[i]) / (steps[-1] - steps[i]))


def _sharp_fall(steps: Values, values: Values, where: Sequence[float]) -> float:
    """Return the fall from the previous evaluation to the first step of `where`; without steps, the largest fall."""
    falls = dict(zip(steps[1:], -np.diff(values), strict=True))
    return float(falls.get(where[0], math.nan) if where else max(falls.values()))


def _largest_change(_: Values, values: Values, __: Sequence[float]) -> float:
    return 100 * max((abs(after / before - 1) for before, after in pairwise(values) if before), default=math.nan)


def _turns(_: Values, values: Values, __: Sequence[float]) -> float:
    changes = np.diff(values)
    return float((changes[1:] * changes[:-1] < 0).sum())


class Measure(NamedTuple):
    """A measure of a curve: one or several numbers from its steps, its values, and the claim's `where`."""

    text: str
    compute: Callable[[Values, Values, Sequence[float]], Any]
    least: int = FEWEST
    """Minimum number of steps of a claim's curve."""
    digits: int = 3
    """Decimals of a measure of rewards."""


MEASURES: Mapping[str, Measure] = {
    "each": Measure("", lambda _, values, __: values, 1),
    "mean": Measure("mean", lambda _, values, __: values.mean()),
    "first": Measure("first", lambda _, values, __: values[0], 2),
    "last": Measure("last", lambda _, values, __: values[-1], 2),
    "minimum": Measure("minimum", lambda _, values, __: values.min()),
    "fall": Measure("first minus last", lambda _, values, __: values[0] - values[-1], 2),
    "rises": Measure("change", lambda _, values, __: np.diff(values), 2),
    "slowing": Measure("growth a step, early minus late", _slowing, 3, 4),
    "best": Measure("best", lambda _, values, __: values.max()),
    "best_step": Measure("step of the best", lambda steps, values, _: steps[values.argmax()], digits=0),
    "sd": Measure("sd over steps", lambda _, values, __: values.std(ddof=1), digits=4),
    "sd_of_changes": Measure("sd of changes", lambda _, values, __: np.diff(values).std(ddof=1), digits=4),
    "range": Measure("range", lambda _, values, __: np.ptp(values)),
    "drawdown": Measure("largest fall", lambda _, values, __: drawdowns(values[None])[0]),
    "steps_to": Measure("mean first step that reaches the rewards", _steps_to),
    "sharp_fall": Measure("fall", _sharp_fall),
    "largest_change": Measure("largest change in percent", _largest_change, digits=1),
    "total_variation": Measure("total variation", lambda _, values, __: np.abs(np.diff(values)).sum()),
    "sign_changes": Measure("changes of direction", _turns, digits=1),
}
AT_STEPS = ("each", "mean", "range")
"""Measures of the steps that a claim names; other measures use all steps."""


def measured(name: str, curve: Mapping[int, float], first: float = 0, last: float = math.inf) -> float:
    """Return a measure over the evaluations from `first` to `last`; NaN for too few of them."""
    steps = [step for step in curve if first <= step <= last]
    # A standard deviation of changes needs two changes, so three evaluations.
    if len(steps) < (3 if name == "sd_of_changes" else 1):
        return math.nan
    return float(MEASURES[name].compute(np.array(steps), np.array([curve[step] for step in steps]), ()))


# Cached, because each length simulates 200,000 pairs of curves.
@cache
def flat_curves(n: int) -> FlatNoise:
    """Return simulated curves that vary only by the noise of a published evaluation."""
    return flat_noise(n, NOISE_SD, generator(42, "claims", "flat_noise"))


def noise_and_p(
    name: str, gap: float, curves: Sequence[Mapping[int, float]], inside: Sequence[int]
) -> tuple[float, float | None]:
    """Return the noise of a difference between two published curves over the steps `inside`, and its p value."""
    steps = sorted({*curves[0]} & {*curves[1]})
    left, right = (np.array([curve[step] for step in steps]) for curve in curves)
    at = [steps.index(step) for step in inside]
    match name:
        case "mean":
            # The noise comes from all steps: the phases of some claims have only two or three.
            error = float(np.std(left - right, ddof=1)) / math.sqrt(len(inside))
            p = float(2 * scipy.special.stdtr(len(steps) - 1, -abs(gap) / error))
            return float(scipy.special.stdtrit(len(steps) - 1, 0.975)) * error, p
        case "best":
            return 0.0, flat_curves(len(steps)).chance_of_best_gap(abs(gap))
        case "drawdown":
            return 0.0, min(flat_curves(len(steps)).chance_of_drawdown(drawdowns(of[None])[0]) for of in (left, right))
        case "sd_of_changes":
            return 0.0, f_test(np.diff(left), np.diff(right))
        case "sd" | "range":
            return 0.0, f_test(left[at], right[at])
        case _:  # steps are known only up to the distance between evaluations
            return float(np.diff(steps).max()), None
