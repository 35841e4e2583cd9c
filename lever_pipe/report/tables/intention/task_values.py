"""Evaluated episodes as values by seed and task: what intervals and paired tests are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lever_pipe.base.errors import RecordError
from lever_pipe.report.tables.intention import columns
from lever_pipe.report.tables.intention.agent_runs import TEST, VAL, read_columns
from lever_pipe.statistics.curves import trapezoid_weights

Array = NDArray[np.float64]
CURRENT, LAST, BEST = "current", "last", "best"
REWARD, NORMALISED = "reward", "normalised_reward"
METRICS = (REWARD, NORMALISED)


class Place(NamedTuple):
    """One evaluation of one run."""

    arm: str
    seed: int
    split: str
    mode: str
    checkpoint: str
    step: int


class TaskMeans(NamedTuple):
    """[N] means over the rollouts of each task, in the order of task ids, and how many rollouts there are.

    `ceiling` is the mean over tasks of the largest reward of an episode.
    """

    tasks: tuple[str, ...]
    values: Mapping[str, Array]
    n_rollouts: int
    ceiling: float


@dataclass(frozen=True)
class EvaluatedEpisodes:
    """The rows of `episodes.csv`."""

    rows: pd.DataFrame

    @cached_property
    def means(self) -> Mapping[Place, TaskMeans]:
        """Return the evaluations by place.

        Raises:
            RecordError: an evaluation whose tasks have different numbers of rollouts, or other tasks than its split has
                elsewhere, so that nothing can be paired.
        """
        rows = self.rows.assign(**{NORMALISED: self.rows[REWARD] / self.rows[columns.CEILING]})
        keys = list(Place._fields)
        by_task = rows.groupby([*keys, "task_id"], sort=True)[[*METRICS, columns.CEILING]]
        means, counts = by_task.mean(), by_task.size()
        found: dict[Place, TaskMeans] = {}
        for key, of in means.groupby(level=keys, sort=True):
            arm, seed, split, mode, checkpoint, step = map(str, key)
            place = Place(arm, int(float(seed)), split, mode, checkpoint, int(float(step)))
            numbers = set(counts.loc[of.index])
            tasks = tuple(of.index.get_level_values("task_id"))
            if len(numbers) > 1:
                raise _fault(place, "equally many rollouts of each task", f"{min(numbers)} to {max(numbers)}")
            values = {metric: of[metric].to_numpy(dtype=np.float64) for metric in METRICS}
            found[place] = TaskMeans(tasks, values, int(numbers.pop()), float(of[columns.CEILING].mean()))
        _require_same_tasks(found)
        return found

    @cached_property
    def _steps(self) -> Mapping[tuple[str, int, str], tuple[int, ...]]:
        found: dict[tuple[str, int, str], list[int]] = {}
        for place in self.means:
            if place.split == VAL:
                found.setdefault((place.arm, place.seed, place.mode), []).append(place.step)
        return {key: tuple(sorted(steps)) for key, steps in found.items()}

    def held_out(self, arm: str, seed: int, mode: str, checkpoint: str) -> TaskMeans | None:
        """Return the evaluation of a checkpoint on held-out tasks."""
        places = (place for place in self.means if place[:5] == (arm, seed, TEST, mode, checkpoint))
        return next((self.means[place] for place in places), None)

    def validation(self, arm: str, seed: int, mode: str, step: int) -> TaskMeans | None:
        """Return a validation at a step."""
        return self.means.get(Place(arm, seed, VAL, mode, CURRENT, step))

    def steps(self, arm: str, seed: int, mode: str) -> tuple[int, ...]:
        """Return the steps that a run was validated at, the start included."""
        return self._steps.get((arm, seed, mode), ())

    def over_steps(self, arm: str, seed: int, mode: str, steps: Sequence[int], weights: Array) -> TaskMeans | None:
        """Return a weighted sum over evaluations, task by task; None where one of them is missing."""
        found = [self.validation(arm, seed, mode, step) for step in steps]
        known = [of for of in found if of is not None]
        if not known or len(known) < len(found):
            return None
        stacked = {metric: np.stack([of.values[metric] for of in known]) for metric in METRICS}
        values = {metric: np.asarray(weights @ values) for metric, values in stacked.items()}
        return TaskMeans(known[0].tasks, values, known[0].n_rollouts, known[0].ceiling)

    def trapezoid(self, arm: str, seed: int, mode: str) -> TaskMeans | None:
        """Return the trapezoid mean of the curve after the start, task by task."""
        steps = [step for step in self.steps(arm, seed, mode) if step]
        return self.over_steps(arm, seed, mode, steps, trapezoid_weights(steps)) if steps else None

    def last_mean(self, arm: str, seed: int, mode: str, n: int) -> TaskMeans | None:
        """Return the mean of the last `n` evaluations after the start, task by task."""
        steps = [step for step in self.steps(arm, seed, mode) if step][-n:]
        return self.over_steps(arm, seed, mode, steps, np.full(len(steps), 1 / len(steps))) if steps else None

    def gain(self, arm: str, seed: int, mode: str) -> TaskMeans | None:
        """Return the last evaluation minus the start, task by task."""
        steps = self.steps(arm, seed, mode)
        if len(steps) < 2 or steps[0]:
            return None
        return self.over_steps(arm, seed, mode, (steps[0], steps[-1]), np.array([-1.0, 1.0]))


def read_episodes(path: Path) -> EvaluatedEpisodes:
    """Return the episodes of `episodes.csv`.

    Raises:
        RecordError: a missing file or column, or a value that is no number.
    """
    numbers = ("seed", "step", "sample", "reward", "ceiling", "turns", "n_agent_tokens")
    return EvaluatedEpisodes(read_columns(path, columns.EPISODES_COLUMNS, numbers=numbers))


def _require_same_tasks(found: Mapping[Place, TaskMeans]) -> None:
    first: dict[str, Place] = {}
    for place, means in found.items():
        other = first.setdefault(place.split, place)
        if found[other].tasks != means.tasks:
            raise _fault(place, f"the {len(found[other].tasks)} tasks of {other}", f"{len(means.tasks)} others")


def _fault(place: Place, expected: str, found: str) -> RecordError:
    return RecordError(f"episodes.csv, {place}: expected {expected}", found=found, do="Evaluate all runs alike.")
