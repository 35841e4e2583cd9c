"""The collected files of study `intention`: their columns, and lookup of its runs by arm and seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from lever_pipe.base.errors import RecordError

CURVES_COLUMNS = ("arm", "seed", "step", "split", "mode", "metric", "value")
LOCATION = ("arm", "seed", "split", "mode", "checkpoint", "step")
"""Columns that identify an evaluation of a run."""
EPISODES_COLUMNS = (
    *("arm", "seed", "step", "split", "mode", "checkpoint", "task_id", "sample"),
    *("reward", "ceiling", "turns", "end", "n_agent_tokens"),
)
RUNS_COLUMNS = (
    *("arm", "seed", "engine", "planned_steps", "executed_steps", "reason", "best_step", "n_parameters", "version"),
    *("seconds", "device"),
)
TEXTS = ("arm", "split", "mode", "checkpoint", "task_id", "end", "metric", "engine", "reason", "version", "device")
"""Columns of texts; all others are numbers."""
N_TASKS, N_SAMPLES = "n_tasks", "n_samples"
"""Sizes of an evaluation, as metrics of `curves.csv`."""
TASKS_LOST = "tasks_lost"
"""Tasks of an evaluation without a sound episode; `n_tasks` excludes them."""
CEILING = "ceiling"
"""Mean over an evaluation's tasks of the reward of an episode that asks for one detail per question."""
TRAIN, VAL, TEST = "train", "val", "test"
GREEDY, SAMPLED = "greedy", "sampled"
MODES = (GREEDY, SAMPLED)
Series = Mapping[int, float]
"""A metric by step, in ascending order."""


@dataclass(frozen=True)
class AgentRuns:
    """Every run: `rows` as in `curves.csv`, `facts` as in `runs.csv`, with NaN for an unknown number."""

    rows: pd.DataFrame
    facts: pd.DataFrame

    @cached_property
    def _series(self) -> Mapping[tuple[str, int, str, str, str], Series]:
        by_run = self.rows.sort_values("step", kind="stable").groupby(["arm", "seed", "split", "mode", "metric"])
        return {key: dict(zip(part["step"].astype(int), part["value"], strict=True)) for key, part in by_run}  # type: ignore[misc]

    @cached_property
    def _by_run(self) -> Mapping[tuple[str, int], Any]:
        rows: Iterable[Any] = self.facts.itertuples(index=False)
        return {(row.arm, int(row.seed)): row for row in rows}

    def of(self, arms: Iterable[str]) -> AgentRuns:
        """Return the runs of some arms."""
        rows, facts = (frame[frame["arm"].isin(list(arms))] for frame in (self.rows, self.facts))
        return AgentRuns(rows, facts)

    @property
    def arms(self) -> tuple[str, ...]:
        """Return the arms, in order."""
        return tuple(dict.fromkeys(arm for arm, _ in self._by_run))

    def seeds(self, arm: str) -> tuple[int, ...]:
        """Return an arm's seeds, in order."""
        return tuple(seed for name, seed in self._by_run if name == arm)

    def fact(self, arm: str, seed: int) -> Any:
        """Return the facts of a run as a whole, as an object with the columns of `runs.csv`."""
        return self._by_run[arm, seed]

    def training(self, arm: str, seed: int, metric: str) -> Series:
        """Return a training metric by step; empty if it was not measured."""
        return self._series.get((arm, seed, TRAIN, "", metric), {})

    def validation(self, arm: str, seed: int, mode: str, metric: str = "reward") -> Series:
        """Return a validation metric by step, including the start at step 0."""
        return self._series.get((arm, seed, VAL, mode, metric), {})


def last_mean(series: Series, n: int) -> float:
    """Return the mean of the last `n` values, or of all if there are fewer; NaN without any."""
    values = list(series.values())[-n:]
    return math.fsum(values) / len(values) if values else math.nan


def read_agent_runs(curves: Path, runs: Path) -> AgentRuns:
    """Return the runs of `curves.csv` and `runs.csv`.

    Raises:
        RecordError: a missing file or column, or a malformed number.
    """
    return AgentRuns(read_columns(curves, CURVES_COLUMNS), read_columns(runs, RUNS_COLUMNS))


def read_columns(path: Path, names: Sequence[str]) -> pd.DataFrame:
    """Return the named columns of a CSV file; all except `TEXTS` are numbers, with NaN for an empty field.

    Raises:
        RecordError: a missing file or column, or a malformed number.
    """
    try:
        # Empty texts must not become NaN.
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    except FileNotFoundError:
        raise RecordError(f"{path}: expected a file", found="none", do="Run the rule that makes it.") from None
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise RecordError(
            f"{path}: expected the columns {', '.join(names)}", found=f"no {', '.join(missing)}", do="Collect again."
        )
    try:
        return frame[list(names)].assign(**{name: pd.to_numeric(frame[name]) for name in names if name not in TEXTS})
    except ValueError as error:
        raise RecordError(f"{path}: expected numbers", found=str(error), do="Collect again.") from None
