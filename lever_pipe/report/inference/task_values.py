"""Evaluated episodes as means over the rollouts of each task, by evaluation."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from lever_pipe.base.errors import RecordError
from lever_pipe.intention.records import UNSOUND
from lever_pipe.report.inference.agent_runs import CEILING, EPISODES_COLUMNS, LOCATION, read_columns

log = logging.getLogger(__name__)
REWARD, NORMALISED = "reward", "normalised_reward"
METRICS = (REWARD, NORMALISED)
N_ROLLOUTS = "n_rollouts"
BY_TASK = [*LOCATION, "task_id"]


@dataclass(frozen=True)
class EvaluatedEpisodes:
    """The rows of `episodes.csv`."""

    rows: pd.DataFrame

    @cached_property
    def means(self) -> pd.DataFrame:
        """Return the means over the sound rollouts and the number of all rollouts, by `LOCATION` and task.

        A task is lost if the simulated user has ended all its episodes. It is dropped from every evaluation of its
        split, which keeps them paired.

        Raises:
            RecordError: an evaluation whose tasks have different numbers of rollouts, or other tasks than the rest of
              its split, so that nothing can be paired.
        """
        rows = self.rows.assign(**{NORMALISED: self.rows[REWARD] / self.rows[CEILING]})
        n_rollouts = rows.groupby(BY_TASK).size()
        _require_pairs(n_rollouts)
        means = _without_lost(rows).groupby(BY_TASK)[[*METRICS, CEILING]].mean()
        return means.assign(**{N_ROLLOUTS: n_rollouts})

    def without(self, arms: Collection[str]) -> EvaluatedEpisodes:
        """Return the episodes of the other arms; tasks that only `arms` have lost count again."""
        return EvaluatedEpisodes(self.rows[~self.rows["arm"].isin(arms)])

    def of(self, *location: str | int) -> pd.DataFrame | None:
        """Return the means of one evaluation, by task; None without it. An evaluation of split `test` needs no step."""
        means: Any = self.means
        return means.loc[location] if location in means.index else None


def read_episodes(path: Path) -> EvaluatedEpisodes:
    """Return the episodes of `episodes.csv`.

    Raises:
        RecordError: a missing file or column, or a value that is no number.
    """
    return EvaluatedEpisodes(read_columns(path, EPISODES_COLUMNS))


def _require_pairs(n_rollouts: Any) -> None:
    """Raise a `RecordError` if the evaluations of a split have other tasks, or one of them unequal rollouts."""
    first: dict[str, tuple[Any, list[str]]] = {}
    for location, counts in n_rollouts.groupby(level=list(LOCATION)):
        problem, tasks = "", list(counts.index.get_level_values("task_id"))
        other, expected = first.setdefault(location[LOCATION.index("split")], (location, tasks))
        if counts.min() < counts.max():
            problem, found = "equally many rollouts of each task", f"{counts.min()} to {counts.max()}"
        elif tasks != expected:
            problem, found = f"the {len(expected)} tasks of {other}", f"{len(tasks)} others"
        if problem:
            where = f"episodes.csv, {location}: expected {problem}"
            raise RecordError(where, found=found, do="Evaluate all runs alike.")


def _without_lost(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the sound episodes of tasks that have one in every evaluation of their split.

    Raises:
        RecordError: no task remains.
    """
    sound, parts = rows[~rows["end"].isin(UNSOUND)], []
    for split, of_split in rows.groupby("split"):
        episodes = sound[sound["split"] == split]
        n_evaluations, n_tasks = (len(of_split.drop_duplicates(names)) for names in (list(LOCATION), ["task_id"]))
        times = episodes.drop_duplicates(BY_TASK)["task_id"].value_counts()
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
