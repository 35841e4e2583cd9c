"""The collected runs of study `intention`, looked up by arm and seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from lever_pipe.base.errors import RecordError
from lever_pipe.report.inference import agent_columns as columns

Series = Mapping[int, float]
"""A metric by step, rising."""
TRAIN, VAL, TEST = "train", "val", "test"
GREEDY, SAMPLED = "greedy", "sampled"
MODES = (GREEDY, SAMPLED)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A line of `runs.csv`; NaN seconds where they are not known."""

    arm: str
    seed: int
    engine: str
    planned_steps: int
    executed_steps: int
    reason: str
    best_step: int
    n_parameters: int
    version: str
    seconds: float
    device: str


@dataclass(frozen=True)
class AgentRuns:
    """Curves and facts of every run.

    `rows` have the columns of `curves.csv`.
    """

    rows: pd.DataFrame
    facts: Sequence[RunFacts]

    @cached_property
    def _series(self) -> Mapping[tuple[str, int, str, str, str], Series]:
        found: dict[tuple[str, int, str, str, str], dict[int, float]] = {}
        names = ("arm", "seed", "split", "mode", "metric", "step", "value")
        for *key, step, value in zip(*(self.rows[name] for name in names), strict=True):
            arm, seed, split, mode, metric = key
            found.setdefault((arm, int(seed), split, mode, metric), {})[int(step)] = float(value)
        return {key: dict(sorted(series.items())) for key, series in found.items()}

    @property
    def arms(self) -> tuple[str, ...]:
        """Return the arms, in order."""
        return tuple(dict.fromkeys(fact.arm for fact in self.facts))

    def seeds(self, arm: str) -> tuple[int, ...]:
        """Return an arm's seeds, in order."""
        return tuple(fact.seed for fact in self.facts if fact.arm == arm)

    def common_seeds(self, arm: str, other: str) -> tuple[int, ...]:
        """Return the seeds that two arms share, in order."""
        return tuple(seed for seed in self.seeds(arm) if seed in self.seeds(other))

    def fact(self, arm: str, seed: int) -> RunFacts:
        """Return what is known of a run as a whole."""
        return next(fact for fact in self.facts if (fact.arm, fact.seed) == (arm, seed))

    def training(self, arm: str, seed: int, metric: str) -> Series:
        """Return a training metric by step; empty where it was not measured."""
        return self._series.get((arm, seed, TRAIN, "", metric), {})

    def validation(self, arm: str, seed: int, mode: str, metric: str = "reward") -> Series:
        """Return a validation metric by step, that of the start at step 0 included."""
        return self._series.get((arm, seed, VAL, mode, metric), {})

    def held_out(self, arm: str, seed: int, mode: str, metric: str) -> Series:
        """Return a metric on held-out tasks by the step of the evaluated checkpoint."""
        return self._series.get((arm, seed, TEST, mode, metric), {})

    def mean_training(self, arm: str, metric: str) -> Series:
        """Return a training metric by step, mean over the seeds, at the steps of all of them."""
        return mean_series([self.training(arm, seed, metric) for seed in self.seeds(arm)])

    def mean_of(self, arm: str, mode: str, metric: str) -> float:
        """Return the mean of a validation metric over the seeds and evaluations after the start; NaN without any."""
        values = [
            value
            for seed in self.seeds(arm)
            for value in after_start(self.validation(arm, seed, mode, metric)).values()
        ]
        return math.fsum(values) / len(values) if values else math.nan


def mean_series(of: Sequence[Series]) -> Series:
    """Return the mean of several series at the steps that all of them have."""
    if not of:
        return {}
    common = sorted(set.intersection(*(set(series) for series in of)))
    return {step: math.fsum(series[step] for series in of) / len(of) for step in common}


def after_start(series: Series) -> Series:
    """Return a series without step 0, at which the documents evaluated nothing."""
    return {step: value for step, value in series.items() if step}


def last_mean(series: Series, n: int) -> float:
    """Return the mean of the last `n` values, of all where there are fewer; NaN without any."""
    values = list(series.values())[-n:]
    return math.fsum(values) / len(values) if values else math.nan


def read_agent_runs(curves: Path, runs: Path) -> AgentRuns:
    """Return the runs of `curves.csv` and `runs.csv`.

    Raises:
        RecordError: a missing file or column, or a value that is no number.
    """
    rows = read_columns(curves, columns.CURVES_COLUMNS, numbers=("seed", "step", "value"))
    facts = read_columns(
        runs,
        columns.RUNS_COLUMNS,
        numbers=("seed", "planned_steps", "executed_steps", "best_step", "n_parameters", "seconds"),
    )
    return AgentRuns(rows, [_facts(dict(zip(facts.columns, row, strict=True))) for row in facts.to_numpy().tolist()])


def read_columns(path: Path, names: Sequence[str], *, numbers: Sequence[str]) -> pd.DataFrame:
    """Return the named columns of a CSV, those of `numbers` as float64 with NaN for empty fields.

    Raises:
        RecordError: a missing file or column, or a value that is no number.
    """
    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    except FileNotFoundError:
        raise RecordError(f"{path}: expected a file", found="none", do="Run the rule that makes it.") from None
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise RecordError(
            f"{path}: expected the columns {', '.join(names)}", found=f"no {', '.join(missing)}", do="Collect again."
        )
    try:
        return frame[list(names)].assign(**{name: pd.to_numeric(frame[name]) for name in numbers})
    except ValueError as fault:
        raise RecordError(f"{path}: expected numbers", found=str(fault), do="Collect again.") from None


def _facts(row: Mapping[str, object]) -> RunFacts:
    whole = ("seed", "planned_steps", "executed_steps", "best_step", "n_parameters")
    values: dict[str, object] = {**row, **{name: int(float(str(row[name]))) for name in whole}}
    values["seconds"] = float(str(row["seconds"]))
    return RunFacts(**values)  # type: ignore[arg-type]
