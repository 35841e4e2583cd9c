"""The published runs of documents 003 and 004: their names, and their numbers as printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

NO_KL, KL = "nokl", "kl"
RUNS: Mapping[str, str] = {NO_KL: "no KL", KL: "KL bundle"}
"""Names of the runs in the reference, and in texts."""
DIFFERENCE = "kl-nokl"
LABELS: Mapping[str, str] = {**RUNS, DIFFERENCE: "KL bundle minus no KL"}
"""Names of whatever a number of the reference is stated of."""
REWARD = "val_reward"
ESTIMATE = "val_reward_estimated"
REWARD_DIFFERENCE = "val_reward_diff"
SOURCE = "published (Qwen3-8B, IntentionGym)"
"""How a row says that its numbers are published, and of which scale they are."""
SET_UP = "Published: IntentionGym with Qwen3-8B."
"""The same in a caption."""


@dataclass(frozen=True)
class PublishedAgents:
    """The rows of `userrl-published.csv`, every column as text."""

    rows: pd.DataFrame

    @cached_property
    def _by_metric(self) -> Mapping[tuple[str, str], pd.DataFrame]:
        return {
            (str(run), str(metric)): rows for (run, metric), rows in self.rows.groupby(["run", "metric"], sort=False)
        }

    def series(self, run: str, metric: str, document: str = "") -> dict[int, str]:
        """Return the values of a metric by step as printed, rising; those of one document, or of all."""
        rows = self._of(run, metric, document)
        pairs = zip(rows["step"], rows["value"], strict=True)
        return dict(sorted((int(step), str(value)) for step, value in pairs if step and value))

    def measured(self, run: str) -> dict[int, float]:
        """Return the measured rewards by step; estimates are none."""
        return {step: float(value) for step, value in self.series(run, REWARD).items()}

    def text(self, run: str, metric: str) -> str:
        """Return what is stated of a run as a whole, or an absent cell."""
        values = [str(value) for value in self._of(run, metric, "")["value"] if value]
        return values[0] if values else ""

    def span(self, run: str, metric: str) -> str:
        """Return a printed range as `193 to 205`, or an absent cell."""
        ends = [self.text(run, f"{metric}_{end}") for end in ("min", "max")]
        return " to ".join(ends) if all(ends) else ""

    def only(self, run: str, metric: str) -> tuple[int, str] | None:
        """Return the one value of a metric with its step, or None."""
        found = self.series(run, metric)
        return next(iter(found.items())) if len(found) == 1 else None

    def _of(self, run: str, metric: str, document: str) -> pd.DataFrame:
        rows = self._by_metric.get((run, metric), self.rows.iloc[:0])
        return rows[rows["source_file"].str.startswith(document)] if document else rows
