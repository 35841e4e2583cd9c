"""What the pipeline measured, indexed by what the documents' tables ask for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import pandas as pd

from lever_pipe.base.policy_names import PolicyName
from lever_pipe.report.tables.evidence import Evidence, Interval, Pair, Paired
from lever_pipe.report.tables.text import listing
from lever_pipe.statistics.summary import mean_and_sd, standard_error_percent

V = TypeVar("V")


class Mean(NamedTuple):
    """A mean over runs with their spread (NaN for a single run)."""

    value: float
    sd: float
    n: int


@dataclass(frozen=True)
class Results:
    """The collected results of the main preset; `base` is the RCE epoch that the documents' tables start from.

    GRPO is that of the documents, on stored selections: see `offline_grpo`.
    `scores` and `training` have the columns of `scores.csv` and `training.csv`.
    """

    scores: pd.DataFrame
    training: pd.DataFrame
    base: int | None
    preset: str = ""
    evidence: Evidence = field(default_factory=lambda: Evidence({}, {}))

    @cached_property
    def _accuracy(self) -> dict[tuple[float, int, int, int], Mean]:
        rows = prefix(self._of_base(self.scores))
        return means(rows, ["kl_beta", "epoch", "samples", "shots"], "accuracy")

    @cached_property
    def _metric(self) -> dict[tuple[float, int, str], Mean]:
        return means(self._of_base(self.training), ["kl_beta", "epoch", "metric"], "value")

    def _of_base(self, frame: pd.DataFrame) -> pd.DataFrame:
        rows = offline_grpo(frame)
        return rows[rows["base_rce_epoch"] == self.base]

    def accuracy(self, beta: float, epoch: int, samples: int, shots: int) -> float | None:
        """Return the mean prefix accuracy in percent over seeds, or None where no cell exists."""
        found = self._accuracy.get((beta, epoch, samples, shots))
        return found.value if found else None

    def group(self, beta: float, epoch: int) -> str:
        """Return the name of a GRPO epoch over all its seeds."""
        return str(PolicyName(kind="grpo", preset=self.preset, base=self.base, beta=beta, epoch=epoch))

    def interval(self, beta: float, epoch: int, samples: int, shots: int | str) -> Interval | None:
        """Return an accuracy with its interval, or None where no such epoch was evaluated."""
        if not any(key[:3] == (beta, epoch, samples) for key in self._accuracy):
            return None
        return self.evidence.interval(self.group(beta, epoch), samples, shots)

    def paired(
        self, document: str, epoch: int, betas: tuple[float, float], samples: int, shots: int | str
    ) -> Paired | None:
        """Return the difference of two betas in the family of a document's epoch, or None where it has none."""
        left, right = (self.group(beta, epoch) for beta in betas)
        return self.evidence.paired(Pair(f"document-{document}/epoch~{epoch}", left, right, samples, str(shots)))

    def metric(self, beta: float, epoch: int, name: str) -> float | None:
        """Return the mean of a GRPO training metric over seeds, or None where it was not logged."""
        found = self._metric.get((beta, epoch, name))
        return found.value if found else None

    def rce_metric(self, epoch: int | None, name: str) -> float | None:
        """Return the mean of an RCE training metric over seeds, or None where it was not logged."""
        rows = self.training
        rows = rows[(rows["stage"] == "rce") & (rows["epoch"] == epoch) & (rows["metric"] == name)]
        return float(rows["value"].mean()) if len(rows) else None

    @property
    def epochs(self) -> list[int]:
        """Return the evaluated GRPO epochs."""
        return sorted({key[1] for key in self._accuracy})

    @property
    def betas(self) -> list[float]:
        """Return the betas that were evaluated or trained."""
        return sorted({key[0] for key in self._accuracy} | {key[0] for key in self._metric})

    @property
    def samples(self) -> list[int]:
        """Return the evaluated sample counts of GRPO."""
        return sorted({key[2] for key in self._accuracy})

    @property
    def shots(self) -> list[int]:
        """Return the evaluated shot counts of GRPO."""
        return sorted({key[3] for key in self._accuracy})

    @property
    def runs(self) -> list[int]:
        """Return how many seeds the GRPO rows have, each count once."""
        return sorted({entry.n for entry in self._accuracy.values()})

    def seeds_sentence(self) -> str:
        """Return how many seeds stand behind a mean of the GRPO rows."""
        counts = self.runs
        if not counts:
            return ""
        seeds = sorted(self._of_base(self.scores)["seed"].unique())
        many = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        if counts == [1]:
            return f"Ours: one seed ({seeds[0]})."
        return f"Ours: mean over {many} seeds ({listing(seeds)})."


def choose_base(scores: pd.DataFrame, training: pd.DataFrame, named: int | None) -> int | None:
    """Return the RCE epoch that the tables start from: the named one, else the latest that exists."""
    if named is not None:
        return named
    bases = pd.concat([scores["base_rce_epoch"], training["base_rce_epoch"]]).dropna()
    return int(bases.max()) if len(bases) else None


def offline_grpo(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the published objective; GRPO on what the policy draws has the same stage."""
    return frame[(frame["stage"] == "grpo") & (frame["mode"] == "offline")]


def prefix(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the published subset, the first questions in question-id order."""
    return scores[scores["subset"] == "prefix"]


def means(frame: pd.DataFrame, keys: list[str], value: str) -> dict[Any, Mean]:
    """Return the mean of `value` over the rows that share `keys`, in key order."""
    return {
        key: Mean(*mean_and_sd(rows[value].to_numpy(dtype=float)), len(rows)) for key, rows in split_by(frame, keys)
    }


def split_by(frame: pd.DataFrame, keys: list[str]) -> list[tuple[Any, pd.DataFrame]]:
    """Return the rows of each value of the key (a tuple of several keys), in key order."""
    return [(key if len(keys) > 1 else key[0], rows) for key, rows in frame.groupby(keys, sort=True)]


def keep(wanted: Sequence[V], existing: Iterable[V], what: str) -> tuple[list[V], str]:
    """Return the wanted values that exist, and a sentence about those that do not.

    Where none exists, all existing ones stand in, so that a table of another configuration is never empty.
    """
    there = list(existing)
    kept = [value for value in wanted if value in there]
    missing = [f"{value:g}" if isinstance(value, float) else str(value) for value in wanted if value not in there]
    if not missing:
        return kept, ""
    sentence = f"Without {what} {listing(missing)}: not part of this configuration."
    if kept:
        return kept, sentence
    return there, f"{sentence} Every {what} of this configuration is shown instead." if there else sentence


def standard_error(accuracy: float | None, n: int) -> float | None:
    """Return the standard error in points of one accuracy in percent over n questions."""
    return None if accuracy is None else standard_error_percent(accuracy / 100, n)
