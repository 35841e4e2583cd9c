"""Evaluated episodes as values by seed and task: what intervals and paired tests are made of."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lever_pipe.base.errors import RecordError
from lever_pipe.intention.records import UNSOUND
from lever_pipe.report.inference import agent_columns as columns
from lever_pipe.report.inference.agent_runs import TEST, VAL, read_columns
from lever_pipe.statistics.curves import trapezoid_weights

log = logging.getLogger(__name__)
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
    """[N] means over the sound rollouts of each task, in the order of task ids, and how many rollouts were played.

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
        """Return the evaluations by place, without tasks that one evaluation of their split has lost.

        A task is lost where the simulated user has ended all its episodes; without it in every evaluation, all pair.

        Raises:
            RecordError: an evaluation whose tasks have different numbers of rollouts, or other tasks than its split has
                elsewhere, so that nothing can be paired.
        """
        rows = self.rows.assign(**{NORMALISED: self.rows[REWARD] / self.rows[columns.CEILING]})
        n_rollouts = _rollouts(rows)
        rows = _without_lost(rows, n_rollouts)
        found: dict[Place, TaskMeans] = {}
        by_task = rows.groupby([*Place._fields, "task_id"], sort=True)[[*METRICS, columns.CEILING]]
        for key, of in by_task.mean().groupby(level=list(Place._fields), sort=True):
            place = _place(key)
            tasks = tuple(of.index.get_level_values("task_id"))
            values = {metric: of[metric].to_numpy(dtype=np.float64) for metric in METRICS}
            found[place] = TaskMeans(tasks, values, n_rollouts[place], float(of[columns.CEILING].mean()))
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


def _place(key: Any) -> Place:
    arm, seed, split, mode, checkpoint, step = map(str, key)
    return Place(arm, int(float(seed)), split, mode, checkpoint, int(float(step)))


def _rollouts(rows: pd.DataFrame) -> dict[Place, int]:
    """Return how many rollouts of each task every evaluation has played.

    Raises:
        RecordError: tasks with different numbers of them, or other tasks than the split has elsewhere.
    """
    found: dict[Place, int] = {}
    first: dict[str, tuple[Place, list[str]]] = {}
    keys = list(Place._fields)
    for key, counts in rows.groupby([*keys, "task_id"], sort=True).size().groupby(level=keys, sort=True):
        place, numbers = _place(key), set(counts)
        if len(numbers) > 1:
            raise _fault(place, "equally many rollouts of each task", f"{min(numbers)} to {max(numbers)}")
        tasks = list(counts.index.get_level_values("task_id"))
        other, wanted = first.setdefault(place.split, (place, tasks))
        if tasks != wanted:
            raise _fault(place, f"the {len(wanted)} tasks of {other}", f"{len(tasks)} others")
        found[place] = int(numbers.pop())
    return found


def _without_lost(rows: pd.DataFrame, places: Iterable[Place]) -> pd.DataFrame:
    """Return the sound episodes of those tasks that have one in every evaluation of their split.

    Raises:
        RecordError: no task is left.
    """
    sound = rows[~rows["end"].isin(UNSOUND)]
    tasks: dict[Place, set[str]] = {place: set() for place in places}
    for key, names in sound.groupby(list(Place._fields))["task_id"]:
        tasks[_place(key)] = set(names)
    for split in dict.fromkeys(place.split for place in tasks):
        kept = set.intersection(*(names for place, names in tasks.items() if place.split == split))
        is_split = sound["split"] == split
        n_tasks = rows.loc[rows["split"] == split, "task_id"].nunique()
        if not kept:
            raise RecordError(
                f"episodes.csv, split {split}: expected a task with a sound episode in every evaluation",
                found=f"none of {n_tasks}",
                do="Train and evaluate again with a simulator that answers.",
            )
        if len(kept) < n_tasks:
            log.warning(
                "%d of %d tasks of split %s lack a sound episode somewhere", n_tasks - len(kept), n_tasks, split
            )
            sound = sound[~is_split | sound["task_id"].isin(kept)]
    return sound


def _fault(place: Place, expected: str, found: str) -> RecordError:
    return RecordError(f"episodes.csv, {place}: expected {expected}", found=found, do="Evaluate all runs alike.")
