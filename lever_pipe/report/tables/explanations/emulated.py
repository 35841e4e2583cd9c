"""What the emulation measured, indexed by what its tables ask for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from lever_pipe.report.tables.text import number

DIGITS = 2
"""Decimals of an accuracy: two rows agree when they print alike."""

Row = tuple[float, ...]
Run = tuple[float, int]
"""KL_BETA and epoch of a policy."""


@dataclass(frozen=True)
class Frames:
    """The four files of `score_emulation`, every column as text."""

    scores: pd.DataFrame
    prompts: pd.DataFrame
    agreement: pd.DataFrame
    training: pd.DataFrame


class Emulated:
    """Accuracies, choices and training metrics of every arm."""

    def __init__(self, frames: Frames) -> None:
        """Index the files."""
        self._accuracy: dict[tuple[str, float, int, int, int], float] = {}
        for row in _records(frames.scores):
            key = (row["arm"], float(row["kl_beta"]), int(row["epoch"]), int(row["samples"]), int(row["shots"]))
            self._accuracy[key] = float(number(float(row["accuracy"]), DIGITS))
        self._metric = {
            (row["arm"], int(row["base_rce_epoch"]), row["kl_beta"], int(row["epoch"]), row["metric"]): row["value"]
            for row in _records(frames.training)
        }
        self._prompts = {(row["arm"], row["shots"]): row for row in _records(frames.prompts)}
        self._agreement = _records(frames.agreement)

    def accuracy(self, arm: str, run: Run, samples: int, shots: int) -> float:
        """Return an accuracy in percent, as printed."""
        return self._accuracy[arm, *run, samples, shots]

    def cells(self, arm: str, run: Run, samples: Sequence[int], shots: Sequence[int]) -> Row:
        """Return the accuracies of one policy, sample counts outermost."""
        return tuple(self.accuracy(arm, run, n, k) for n in samples for k in shots)

    def metric(self, arm: str, base: int, run: Run, name: str) -> float:
        """Return a training metric of one epoch."""
        return float(self._metric[arm, base, f"{run[0]:g}", run[1], name])

    def untouched(self, arm: str, base: int, epoch: int, name: str) -> float:
        """Return a metric of an epoch (1, or 2 for any later one) in which nothing is updated."""
        return float(self._metric[arm, base, "", epoch, name])

    def repeated_share(self, arm: str, shots: int) -> float:
        """Return the share of an arm's prompts of so many shots that show a demonstration twice."""
        return float(self._prompts[arm, str(shots)]["repeated_share"])

    def most_prompts(self, arm: str) -> int:
        """Return how many distinct prompts all policies of an arm make of one query, at most."""
        return int(self._prompts[arm, ""]["prompts_a_query_max"])

    def agreements(self, arm: str, runs: Collection[Run], shots: int) -> list[float]:
        """Return the share of queries that two policies give the same prompt, for every two of these policies."""
        return [
            float(row["identical"])
            for row in self._agreement
            if row["arm"] == arm
            and row["shots"] == str(shots)
            and (float(row["kl_beta"]), int(row["epoch"])) in runs
            and (float(row["other_kl_beta"]), int(row["other_epoch"])) in runs
        ]


def _records(frame: pd.DataFrame) -> list[dict[Any, Any]]:
    return frame.to_dict("records")
