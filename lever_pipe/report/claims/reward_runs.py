"""The runs of documents 003 and 004: rewards by step, and what is stated about each run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lever_pipe.report.claims.quantities import Quantity, decimals_of, printed
from lever_pipe.report.claims.texts import PRINTED_ONLY, by_value, named
from lever_pipe.report.claims.verdicts import NotTestable
from lever_pipe.report.tables.intention.published import LABELS, REWARD, RUNS
from lever_pipe.statistics.curve_tests import CurveComparison, FlatNoise, compare_curves
from lever_pipe.statistics.curves import CurveStatistics, curve_statistics

SETTINGS = {
    "kl_loss_coef": "KL coefficient",
    "entropy_coeff": "entropy coefficient",
    "lr_schedule": "learning-rate schedule",
}
"""Settings that two runs may differ in, and what a reader calls them."""
COMPARED = ("kl_loss_coef",)
"""The settings that the runs are named by, so that they are what is compared and not what differs beside it."""
NONE_STATED = "not stated"
NONE_OF_OURS = "No such number is stated of our runs."
OVER_SEEDS_LEAD = "Over all seeds:"
"""Begins numbers that belong to no single seed."""
FEWEST = 5
"""Evaluations below which a curve has no statistics."""
DOCUMENTS = ("003", "004")
_LARGE = 100.0
"""Logged numbers from here on are shown without decimals: tokens and their rates."""


def n_evaluations(rows: pd.DataFrame) -> int:
    """Return at how many steps every run of a reference was measured."""
    measured = rows[rows["metric"] == REWARD]
    return len(set.intersection(*(set(measured.loc[measured["run"] == run, "step"]) for run in RUNS)))


class _Row(NamedTuple):
    """What is stated of a run's metric; a filter of a frame costs as much as a hundred of these."""

    source_file: str
    step: str
    value: str


@dataclass(frozen=True)
class RewardRuns:
    """The rows of a reference with the columns of `userrl-published.csv`, every column as text, for one document.

    A pair of our runs is given in the same columns.
    """

    rows: pd.DataFrame
    document: str
    noise: FlatNoise
    """Flat curves of as many evaluations."""
    labels: Mapping[str, str] = field(default_factory=lambda: RUNS)
    """What texts call the runs; `` `ARM` `` for one of ours."""
    settings: Mapping[str, str] = field(default_factory=lambda: SETTINGS)
    """Settings that two runs may differ in, and what a reader calls them."""
    seed_differences: tuple[float, ...] = ()
    """Of ours: the mean reward of the KL bundle minus that of the run without KL, by common seed."""
    digits: int | None = None
    """Decimals that every number is shown with, where they were logged; None shows them as printed."""

    @property
    def is_ours(self) -> bool:
        """Return whether the runs are ours, so that nothing is printed but everything logged."""
        return self.digits is not None

    @property
    def p_is_of_runs(self) -> str:
        """Return the words behind a p value of one pair of runs, whose evaluations or steps it takes as a sample."""
        return "; p is for these two curves only" if self.is_ours else ""

    def require_curves(self) -> None:
        """Raise `NotTestable` unless both runs have evaluations enough at the same steps."""
        _ = self.steps

    def require_print(self) -> None:
        """Raise `NotTestable` unless the runs are the printed ones."""
        if self.is_ours:
            raise NotTestable(PRINTED_ONLY)

    def lacking(self, reason: str) -> NotTestable:
        """Return why a claim cannot be asked; what is not printed is not stated of ours."""
        return NotTestable(NONE_OF_OURS if self.is_ours else reason)

    def subject(self, run: str) -> str:
        """Return `The run `no KL`` or `Our arm `baseline``, as the beginning of a sentence."""
        return f"Our arm {self.labels[run]}" if self.is_ours else f"The run `{self.labels[run]}`"

    @cached_property
    def steps(self) -> NDArray[np.float64]:
        """Return [N] the steps at which every run was measured; fewer than `FEWEST` are no curve."""
        found = [set(self._measured(run)) for run in RUNS]
        common = sorted(set.intersection(*found))
        if len(common) < FEWEST:
            published = f"Fewer than {FEWEST} rewards are published at the same steps of both runs."
            ours = f"Our runs hold fewer than {FEWEST} evaluations at the same steps."
            raise NotTestable(ours if self.is_ours else published)
        return np.array(common, dtype=np.float64)

    def rewards(self, run: str) -> NDArray[np.float64]:
        """Return [N] the measured rewards of a run."""
        values = self._measured(run)
        return np.array([values[int(step)].value for step in self.steps], dtype=np.float64)

    def reward(self, run: str, step: int) -> Quantity:
        """Return a measured reward."""
        found = self._measured(run).get(step)
        if found is None:
            ours = f"{self.subject(run)} was not evaluated at step {step}."
            raise NotTestable(ours if self.is_ours else f"No reward of the run `{RUNS[run]}` is known at step {step}.")
        return found

    def change(self, run: str, step: int) -> float:
        """Return how far a run's reward lies above that of the evaluation before, evaluated in either run."""
        grid = sorted({at for name in RUNS for at in self._measured(name)} | {step})
        at = grid.index(step)
        if not at:
            raise NotTestable(f"No evaluation before step {step} is known.")
        return self.reward(run, step).value - self.reward(run, grid[at - 1]).value

    def steps_of(self, run: str) -> list[int]:
        """Return the steps at which a run was measured."""
        return sorted(self._measured(run))

    def curve(self, run: str) -> CurveStatistics:
        """Return the statistics of a run's measured rewards."""
        return self._curves[run]

    @cached_property
    def comparison(self) -> CurveComparison:
        """Return the comparison of the KL bundle minus no KL."""
        return compare_curves(self.rewards("kl"), self.rewards("nokl"))

    def series(self, run: str, metric: str) -> dict[int, Quantity]:
        """Return the values of a metric by step in order, as this document prints them."""
        rows = self._of(run, metric)
        found = {int(row.step): self._quantity(row.value, metric) for row in rows if row.step and row.value}
        return dict(sorted(found.items()))

    def fact(self, run: str, metric: str) -> Quantity:
        """Return a number that is stated of a run as a whole."""
        return self._quantity(self.text(run, metric), metric)

    def text(self, run: str, metric: str) -> str:
        """Return a text that is stated of a run as a whole, this document's first."""
        rows = self._of(run, metric) or self._everywhere(run, metric)
        values = [row.value for row in rows if row.value]
        if not values:
            owner = f" of `{LABELS[run]}`" if run else ""
            raise self.lacking(f"Not published: {named(metric)}{owner}.")
        return values[0]

    def only(self, run: str, metric: str) -> tuple[int, Quantity]:
        """Return the one value of a metric that this document prints, with its step."""
        found = self.series(run, metric)
        if not found:
            raise self.lacking(f"Not published: {named(metric)} of `{LABELS[run]}`.")
        if len(found) > 1:
            raise self.lacking(f"More than one value is published: {named(metric)} of `{LABELS[run]}`.")
        return next(iter(found.items()))

    def differs(self, *, beside: tuple[str, ...] = COMPARED) -> tuple[str, ...]:
        """Return the settings that differ between the runs, those in `beside` left out."""
        stated = {name: {run: self._setting(run, name) for run in RUNS} for name in self.settings if name not in beside}
        return tuple(
            by_value(self.settings[name], {self.labels[run]: value for run, value in values.items()})
            for name, values in stated.items()
            if len(set(values.values())) > 1
        )

    @cached_property
    def _curves(self) -> Mapping[str, CurveStatistics]:
        return {run: curve_statistics(self.steps, self.rewards(run)) for run in RUNS}

    def _measured(self, run: str) -> dict[int, Quantity]:
        return self._rewards[run]

    @cached_property
    def _rewards(self) -> Mapping[str, dict[int, Quantity]]:
        rows = {run: self._everywhere(run, REWARD) for run in RUNS}
        return {run: {int(row.step): self._quantity(row.value, REWARD) for row in of} for run, of in rows.items()}

    def _setting(self, run: str, name: str) -> str:
        values = [row.value for row in self._everywhere(run, name) if row.value]
        return values[0] if values else NONE_STATED

    def _of(self, run: str, metric: str) -> list[_Row]:
        return [row for row in self._everywhere(run, metric) if row.source_file.startswith(self.document)]

    def _everywhere(self, run: str, metric: str) -> list[_Row]:
        return self._by_metric.get((run, metric), [])

    @cached_property
    def _by_metric(self) -> Mapping[tuple[str, str], list[_Row]]:
        found: defaultdict[tuple[str, str], list[_Row]] = defaultdict(list)
        columns = ("run", "metric", *_Row._fields)
        for run, metric, *row in zip(*(self.rows[name] for name in columns), strict=True):
            found[run, metric].append(_Row(*row))
        return found

    @cached_property
    def _decimals(self) -> Mapping[str, int]:
        numeric = self.rows[self.rows["value"].str.fullmatch(r"[+-]?\d+(\.\d+)?")]
        decimals = numeric["value"].map(decimals_of).groupby(numeric["metric"]).max()
        return {str(metric): int(most) for metric, most in decimals.items()}

    def _quantity(self, text: str, metric: str) -> Quantity:
        if self.digits is not None:
            value = float(text)
            return Quantity(value, self.digits if abs(value) < _LARGE else 0, 0.0)
        return printed(text, self._decimals.get(metric))
