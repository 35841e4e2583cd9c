"""The published numbers, looked up by what they belong to, each with its lineage."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from lever_pipe.report.tables.text import ABSENT, beta_text, listing, span

LABEL = re.compile(r"(?P<beta>\d+(?:\.\d+)?)(?:\(stored \d+(?:\.\d+)?\))?")

CURVES = "KL_BETA_012_vs_015_训练曲线分析报告.md"
BETAS = "KL_BETA_0145_0155对比.md"
ACCURACY_015 = "2025-12-20正确率.md"
ACCURACY_012 = "2025-12-20正确率_KL012对比.md"
"""Files of the reference, as its column `source_file` names them after the revision."""

STATISTICS = ("mean", "first", "last", "minimum")
"""Notes that name a statistic over a run instead of a lineage."""


@dataclass(frozen=True, slots=True)
class PublishedNumber:
    """One number of the reference, as printed there, and what its row says about where it comes from."""

    value: float
    text: str
    epoch: str
    source: str
    note: str


@dataclass(frozen=True, slots=True)
class Key:
    """What a published number belongs to.

    `epoch` is `1`, `mean(1-50)`, or `minimum` for the smallest value of a run; training has 0 samples and shots.
    """

    stage: str
    beta: float | None
    epoch: str
    metric: str
    samples: int = 0
    shots: int = 0


class Published:
    """An index of the reference rows of OK-VQA with Qwen2.5-VL and the RandSampler."""

    def __init__(self, reference: pd.DataFrame) -> None:
        """Index `reference`, read with every column as text and empty fields as empty text."""
        self._numbers: dict[Key, list[PublishedNumber]] = {}
        for row in reference.to_dict("records"):
            if row["dataset"] == "okvqa" and row["lvlm"].startswith("Qwen2.5-VL"):
                self._numbers.setdefault(_key(row), []).append(_number(row))

    def find(self, key: Key, sources: Sequence[str]) -> PublishedNumber | None:
        """Return the number of the first of `sources` that has one."""
        found = self._numbers.get(key, [])
        return next((number for source in sources for number in found if number.source == source), None)

    def of_rl_data(self, metric: str, file: str) -> PublishedNumber | None:
        """Return a number about one of the published RL data files."""
        found = self._numbers.get(Key("rl_data", None, "", metric), [])
        return next((number for number in found if number.note == file), None)


class Lineage:
    """Collects the lineage of the published numbers that a table prints."""

    def __init__(self) -> None:
        self._epochs: dict[tuple[str, str], dict[str, set[str]]] = {}  # (file, note) -> label -> epochs

    def add(self, key: Key, number: PublishedNumber | None) -> str:
        """Note the lineage of a printed number and return its text (absent for None)."""
        if number is None:
            return ABSENT
        label = "" if key.beta is None else beta_text(key.beta)
        note = "" if number.note in STATISTICS else number.note
        self._epochs.setdefault((number.source, note), {}).setdefault(label, set()).add(key.epoch)
        return number.text

    def notes(self) -> tuple[str, ...]:
        """Return one sentence for each file and note, with the betas and epochs it covers."""
        found = [_sentence(*where, labels) for where, labels in self._epochs.items()]
        return tuple(sorted(found))


def _sentence(source: str, note: str, labels: dict[str, set[str]]) -> str:
    by_epochs: dict[str, list[str]] = {}
    for label in sorted(labels):
        by_epochs.setdefault(_epochs_text(labels[label]), []).append(label)
    parts = [f"{listing(names)}{epochs}".strip() for epochs, names in by_epochs.items()]
    about = f"Published {'; '.join(parts)}".rstrip()
    return f"{about}: {note} ({source})" if note else f"{about}: {source}"


def _epochs_text(epochs: set[str]) -> str:
    """Return `, epoch 1-2` for single epochs, and nothing for statistics over a run."""
    whole = [int(epoch) for epoch in epochs if epoch.isdigit()]
    return f", epoch {span(whole)}" if whole and len(whole) == len(epochs) else ""


def _key(row: Mapping[Any, Any]) -> Key:
    epoch = "minimum" if row["notes"] == "minimum" else row["epoch"]
    return Key(row["stage"], _beta(row["kl_beta"]), epoch, row["metric"], _count(row["samples"]), _count(row["shot"]))


def _number(row: Mapping[Any, Any]) -> PublishedNumber:
    source = row["source_file"].rpartition(":")[2]
    value = float(row["value"])
    return PublishedNumber(value, row["value"], row["epoch"], source, row["notes"])


def _beta(text: str) -> float | None:
    match = LABEL.fullmatch(text)
    return float(match["beta"]) if match else None


def _count(text: str) -> int:
    return int(text) if text.isdigit() else 0
