"""What `compare_arms` found, looked up by arm, endpoint and seed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lever_pipe.report.evidence import PRIMARY
from lever_pipe.report.inference.agent_runs import read_columns
from lever_pipe.report.inference.arm_comparisons import ArmComparisonRow
from lever_pipe.report.inference.curve_rows import CHANGE, RELATIVE_CHANGE, StatisticRow
from lever_pipe.report.inference.endpoints import EndpointRow
from lever_pipe.statistics.curve_tests import CurveComparison
from lever_pipe.statistics.curves import CurveStatistics

Key = tuple[str, str, int, str]
"""Arm, arm that it is held against (or nothing), seed, mode."""


@dataclass(frozen=True)
class Found:
    """The rows of `endpoints.csv`, `comparisons.csv` and `statistics.csv`."""

    endpoints: Mapping[tuple[str, str, str], EndpointRow]
    """By arm, endpoint and seed; an empty seed is the mean."""
    comparisons: Sequence[ArmComparisonRow]
    statistics: Mapping[Key, Mapping[str, float]]

    def mean(self, arm: str, endpoint: str) -> EndpointRow | None:
        """Return an endpoint, mean over seeds."""
        return self.endpoints.get((arm, endpoint, ""))

    def value(self, arm: str, endpoint: str) -> float:
        """Return the mean over seeds of an endpoint; NaN where the runs lack it."""
        row = self.mean(arm, endpoint)
        return math.nan if row is None else row.value

    def by_seed(self, arm: str, endpoint: str, seeds: Sequence[int]) -> list[float]:
        """Return an endpoint of each of the seeds; NaN where a run lacks it."""
        rows = [self.endpoints.get((arm, endpoint, str(seed))) for seed in seeds]
        return [math.nan if row is None else row.value for row in rows]

    @property
    def primary(self) -> str:
        """Return the primary endpoint, of several the first; nothing where no run has it."""
        return next((row.endpoint for row in self.endpoints.values() if row.role == PRIMARY), "")

    def family(self, *, is_primary: bool) -> list[ArmComparisonRow]:
        """Return the comparisons at the first primary endpoint, or at the trapezoid mean."""
        if is_primary:
            return [row for row in self.comparisons if row.endpoint == self.primary]
        return [row for row in self.comparisons if row.role != PRIMARY]

    def curve(self, arm: str, seed: int, mode: str) -> CurveStatistics | None:
        """Return the statistics of a run's curve."""
        values = self.statistics.get((arm, "", seed, mode))
        return None if values is None else _curve(values)

    def pair(self, arm: str, against: str, seed: int, mode: str) -> CurveComparison | None:
        """Return the comparison of two runs' curves."""
        values = self.statistics.get((arm, against, seed, mode))
        return None if values is None else CurveComparison(**_typed(CurveComparison, values))

    def statistic(self, arm: str, against: str, seed: int, mode: str, name: str) -> float:
        """Return one statistic; NaN where there is none."""
        return self.statistics.get((arm, against, seed, mode), {}).get(name, math.nan)


def read_found(endpoints: Path, comparisons: Path, statistics: Path) -> Found:
    """Return what `compare_arms` wrote.

    Raises:
        RecordError: a missing file or column, or a value that is no number.
    """
    numbers = ("value", "low", "high", "n_seeds", "n_tasks", "n_rollouts", "n_evaluations")
    frame = read_columns(endpoints, EndpointRow._fields, numbers=numbers)
    found = [EndpointRow._make(row)._replace(**_counts(EndpointRow, row)) for row in frame.itertuples(index=False)]
    by_key = {(row.arm, row.endpoint, row.seed): row for row in found}
    texts = ("endpoint", "role", "arm", "reference", "test", "family")
    frame = read_columns(
        comparisons,
        ArmComparisonRow._fields,
        numbers=tuple(name for name in ArmComparisonRow._fields if name not in texts),
    )
    rows = [
        ArmComparisonRow._make(row)._replace(**_counts(ArmComparisonRow, row)) for row in frame.itertuples(index=False)
    ]
    frame = read_columns(statistics, StatisticRow._fields, numbers=("seed", "value"))
    values: dict[Key, dict[str, float]] = {}
    for row in map(StatisticRow._make, frame.itertuples(index=False)):
        values.setdefault((row.arm, row.against, int(row.seed), row.mode), {})[row.statistic] = float(row.value)
    return Found(by_key, rows, values)


def _counts(of: type[EndpointRow | ArmComparisonRow], row: Iterable[Any]) -> dict[str, Any]:
    """Return the fields of a row that count something as whole numbers."""
    return {name: int(value) for name, value in zip(of._fields, row, strict=True) if name.startswith("n_")}


def _curve(values: Mapping[str, float]) -> CurveStatistics:
    changes: dict[str, Any] = {
        name: tuple(value for key, value in values.items() if key.startswith(f"{prefix}~"))
        for name, prefix in (("changes", CHANGE), ("relative_changes", RELATIVE_CHANGE))
    }
    return CurveStatistics(**_typed(CurveStatistics, values), **changes)


def _typed(of: type, values: Mapping[str, float]) -> dict[str, Any]:
    """Return the fields of a dataclass that are single numbers, counts as whole ones."""
    fields = [field for field in dataclasses.fields(of) if "tuple" not in str(field.type)]
    return {field.name: int(values[field.name]) if field.type == "int" else values[field.name] for field in fields}
