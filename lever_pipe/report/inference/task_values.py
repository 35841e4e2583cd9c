"""Evaluated episodes as values by seed and task, the inputs of intervals and paired tests."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lever_pipe.base.errors import RecordError
from lever_pipe.intention.records import UNSOUND
from lever_pipe.report.inference.agent_runs import CEILING, EPISODES_COLUMNS, LOCATION, TEST, VAL, read_columns

log = logging.getLogger(__name__)
Array = NDArray[np.float64]
CURRENT, LAST, BEST = "current", "last", "best"
REWARD, NORMALISED = "reward", "normalised_reward"
METRICS = (REWARD, NORMALISED)
Location = tuple[str, int, str, str, str, int]
"""One evaluation of one run, with the parts of `LOCATION`."""


class TaskMeans(NamedTuple):
    """[N] means over the sound rollouts of each task, in the order of task ids, and the number of rollouts per task.

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
    def means(self) -> Mapping[Location, TaskMeans]:
        """Return the evaluations by location, without tasks that one evaluation of their split has lost.

        A task is lost if the simulated user has ended all its episodes. Dropping it from every evaluation keeps them
        paired.

        Raises:
            RecordError: an evaluation whose tasks have different numbers of rollouts, or other tasks than the rest of
              its split, so that nothing can be paired.
        """
        rows = self.rows.assign(**{NORMALISED: self.rows[REWARD] / self.rows[CEILING]})
        n_rollouts = _rollouts(rows)
        means: dict[Location, TaskMeans] = {}
        for location, frame in _by_location(
            _without_lost(rows).groupby([*LOCATION, "task_id"])[[*METRICS, CEILING]].mean()
        ):
            tasks = tuple(frame.index.get_level_values("task_id"))
            values = {metric: frame[metric].to_numpy(dtype=np.float64) for metric in METRICS}
            means[location] = TaskMeans(tasks, values, n_rollouts[location], float(frame[CEILING].mean()))
        return means

    def without(self, arms: Collection[str]) -> EvaluatedEpisodes:
        """Return the episodes of the other arms; tasks that only `arms` have lost count again."""
        return EvaluatedEpisodes(self.rows[~self.rows["arm"].isin(arms)])

    def held_out(self, arm: str, seed: int, mode: str, checkpoint: str) -> TaskMeans | None:
        """Return the evaluation of a checkpoint on held-out tasks."""
        locations = (location for location in self.means if location[:5] == (arm, seed, TEST, mode, checkpoint))
        return next((self.means[location] for location in locations), None)

    def validation(self, arm: str, seed: int, mode: str, step: int) -> TaskMeans | None:
        """Return a validation at a step."""
        return self.means.get((arm, seed, VAL, mode, CURRENT, step))


def read_episodes(path: Path) -> EvaluatedEpisodes:
    """Return the episodes of `episodes.csv`.

    Raises:
        RecordError: a missing file or column, or a value that is no number.
    """
    return EvaluatedEpisodes(read_columns(path, EPISODES_COLUMNS))


def _by_location(frame: Any) -> Iterator[tuple[Location, Any]]:
    """Yield the part of each evaluation from a frame whose index begins with the location."""
    for (arm, seed, split, mode, checkpoint, step), part in frame.groupby(level=list(LOCATION)):
        yield (arm, int(seed), split, mode, checkpoint, int(step)), part


def _rollouts(rows: pd.DataFrame) -> dict[Location, int]:
    """Return the number of rollouts per task of every evaluation.

    Raises:
        RecordError: different numbers within an evaluation, or other tasks than elsewhere in the split.
    """
    rollouts: dict[Location, int] = {}
    first: dict[str, tuple[Location, list[str]]] = {}
    for location, counts in _by_location(rows.groupby([*LOCATION, "task_id"]).size()):
        if counts.min() < counts.max():
            raise _problem(location, "equally many rollouts of each task", f"{counts.min()} to {counts.max()}")
        tasks = list(counts.index.get_level_values("task_id"))
        other, expected = first.setdefault(location[2], (location, tasks))
        if tasks != expected:
            raise _problem(location, f"the {len(expected)} tasks of {other}", f"{len(tasks)} others")
        rollouts[location] = int(counts.min())
    return rollouts


def _without_lost(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the sound episodes of tasks that have one in every evaluation of their split.

    Raises:
        RecordError: no task remains.
    """
    sound, parts = rows[~rows["end"].isin(UNSOUND)], []
    for split, of_split in rows.groupby("split"):
        episodes = sound[sound["split"] == split]
        n_evaluations, n_tasks = (len(of_split.drop_duplicates(names)) for names in (list(LOCATION), ["task_id"]))
        times = episodes.drop_duplicates([*LOCATION, "task_id"])["task_id"].value_counts()
        whole = times.index[times == n_evaluations]
        if not len(whole):
            raise RecordError(
                f"episodes.csv, split {split}: expected a task with a sound episode in every evaluation",
                found=f"none of {n_tasks}",
                do="Train and evaluate again with a simulator that answers.",
            )
        if len(whole) < n_tasks:
            lost = n_tasks - len(whole)
            log.warning("%d of %d tasks of split %s lack a sound episode somewhere", lost, n_tasks, split)
        parts.append(episodes[episodes["task_id"].isin(whole)])
    return pd.concat(parts) if parts else sound


def _problem(location: Location, expected: str, found: str) -> RecordError:
    return RecordError(f"episodes.csv, {location}: expected {expected}", found=found, do="Evaluate all runs alike.")
