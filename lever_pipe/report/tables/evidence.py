"""Intervals and paired comparisons, looked up by what they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from lever_pipe.base.errors import RecordError
from lever_pipe.report.tables.frames import read_text_columns
from lever_pipe.report.tables.text import bracketed, number, signed

MEAN = "mean"
"""The shot count of a mean over all shots of a question."""
ALPHA = 0.05
"""A comparison whose Holm-adjusted p lies below counts as separated."""

OF_ONE_RUN, BY_SHOTS = "-one-run", "-by-shots"
"""Ends of the names of families: what infers to further questions only, and what stands beside the primary endpoint."""
PRIMARY, SECONDARY = "primary", "secondary"


class Interval(NamedTuple):
    """A mean with its 95 % interval over questions or tasks and, with several runs, over runs; NaN of unknown error."""

    value: float
    low: float
    high: float
    n_runs: int

    def text(self) -> str:
        """Return `57.00 [54.1, 59.8]`."""
        return bracketed(number(self.value, 2), self.low, self.high)


class Paired(NamedTuple):
    """A difference in points over the same questions; `p` is adjusted for its family (Holm)."""

    difference: float
    low: float
    high: float
    p: float
    detectable: float

    def text(self) -> str:
        """Return `+0.12 [-0.9, 1.1]`."""
        return bracketed(signed(self.difference, 2), self.low, self.high)


class Estimate(NamedTuple):
    """Where an accuracy stands: shots are a number as text, or `mean`."""

    group: str
    samples: int
    shots: str


class Pair(NamedTuple):
    """Where a comparison stands: left minus right within a kind of families."""

    family: str
    left: str
    right: str
    samples: int
    shots: str


@dataclass(frozen=True)
class Evidence:
    """What `compare_policies` found."""

    intervals: Mapping[Estimate, Interval]
    comparisons: Mapping[Pair, Paired]

    def interval(self, group: str, samples: int, shots: int | str) -> Interval:
        """Return the interval of a cell.

        Raises:
            RecordError: there is none, so a table would stand without its uncertainty.
        """
        cell = Estimate(group, samples, str(shots))
        found = self.intervals.get(cell)
        if found is None:
            raise RecordError(
                f"intervals.csv: expected an interval of {group} at {samples} samples, shots {shots}",
                found="none",
                do="Rerun compare_policies on the scores of this policy.",
            )
        return found

    def paired(self, pair: Pair) -> Paired | None:
        """Return a comparison in either direction, or None where its family does not hold it."""
        found = self.comparisons.get(pair)
        if found is not None:
            return found
        turned = self.comparisons.get(pair._replace(left=pair.right, right=pair.left))
        if turned is None:
            return None
        return turned._replace(difference=-turned.difference, low=-turned.high, high=-turned.low)


def read_evidence(intervals: Path, comparisons: Path) -> Evidence:
    """Return the evidence of `intervals.csv` and `comparisons.csv`.

    Raises:
        RecordError: a missing file or column.
    """
    return Evidence(dict(_intervals(intervals)), dict(_comparisons(comparisons)))


def kind_of(family: str) -> str:
    """Return a family's name without what tells it from others of its kind: its shots, and how many runs it has."""
    return family.removesuffix(OF_ONE_RUN).removesuffix(BY_SHOTS)


def separated(pairs: Iterable[Paired]) -> bool:
    """Return whether any of the comparisons is separated."""
    return any(pair.p < ALPHA for pair in pairs)


def p_text(p: float) -> str:
    """Return a p value with three decimals, `<0.001` below what they show."""
    return "<0.001" if p < 0.001 else number(p, 3)


def _intervals(path: Path) -> Iterator[tuple[Estimate, Interval]]:
    columns = ("group", "samples", "shots", "accuracy", "low", "high", "n_runs")
    for group, samples, shots, *numbers, runs in _rows(path, columns):
        value, low, high = map(float, numbers)
        yield Estimate(group, int(samples), shots), Interval(value, low, high, int(runs))


def _comparisons(path: Path) -> Iterator[tuple[Pair, Paired]]:
    columns = ("family", "left", "right", "samples", "shots", "difference", "low", "high", "p_holm", "detectable")
    for family, left, right, samples, shots, *numbers in _rows(path, columns):
        yield Pair(kind_of(family), left, right, int(samples), shots), Paired(*map(float, numbers))


def _rows(path: Path, columns: tuple[str, ...]) -> list[list[str]]:
    frame = read_text_columns(path)
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise RecordError(
            f"{path}: expected the columns {', '.join(columns)}",
            found=f"no {', '.join(missing)}",
            do="Run compare_policies again.",
        )
    rows: list[list[str]] = frame[list(columns)].to_numpy().tolist()
    return rows
