"""The published numbers, looked up by what they belong to, each with its lineage."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from lever_pipe.tables.text import beta_text, span

LABEL = re.compile(r"(?P<beta>\d+(?:\.\d+)?)(?:\(stored \d+(?:\.\d+)?\))?")

CURVES = "KL_BETA_012_vs_015_训练曲线分析报告.md"
BETAS = "KL_BETA_0145_0155对比.md"
ACCURACY_015 = "2025-12-20正确率.md"
ACCURACY_012 = "2025-12-20正确率_KL012对比.md"
"""Files of the reference, as its column `source_file` names them after the revision."""


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
        self._epochs: dict[tuple[str, str, str], set[str]] = {}

    def add(self, key: Key, number: PublishedNumber | None) -> str:
        """Note the lineage of a printed number and return its text (absent for None)."""
        if number is None:
            return ""
        label = "" if key.beta is None else beta_text(key.beta)
        self._epochs.setdefault((label, number.source, number.note), set()).add(key.epoch)
        return number.text

    def notes(self) -> tuple[str, ...]:
        """Return one sentence for each label, file and note, with the epochs it covers."""
        order = sorted(self._epochs, key=lambda entry: (entry[0], min(self._epochs[entry]), entry[2]))
        return tuple(_sentence(*entry, self._epochs[entry]) for entry in order)


def _sentence(label: str, source: str, note: str, epochs: set[str]) -> str:
    whole = [int(epoch) for epoch in epochs if epoch.isdigit()]
    named = bool(whole) and len(whole) == len(epochs) and note not in ("first", "last", "minimum")
    about = f"Published {label}".rstrip() + (f", epoch {span(whole)}" if named else "")
    return f"{about}: {note or 'no lineage stated'} ({source})"


def _key(row: dict[str, str]) -> Key:
    epoch = "minimum" if row["notes"] == "minimum" else row["epoch"]
    return Key(row["stage"], _beta(row["kl_beta"]), epoch, row["metric"], _count(row["samples"]), _count(row["shot"]))


def _number(row: dict[str, str]) -> PublishedNumber:
    source = row["source_file"].rpartition(":")[2]
    value = float(row["value"])
    return PublishedNumber(value, row["value"], row["epoch"], source, row["notes"])


def _beta(text: str) -> float | None:
    match = LABEL.fullmatch(text)
    return float(match["beta"]) if match else None


def _count(text: str) -> int:
    return int(text) if text.isdigit() else 0
