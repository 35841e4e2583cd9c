"""The evidence: every measured, published and derived quantity of the report, one row each.

A row says whose quantity it is (`subject`, of a comparison also `against`), which (`metric`), under which conditions,
its value with its interval, and where it was read (`source`). Pages, claims and figures hold references to rows
(`EvidenceRow.key`) and no number of their own, so that a number on a page is traced by following its reference.

| column | holds |
|---|---|
| study | `lever`, `intention`, or `report` for what a table or claim derives |
| subject, against | a policy or its group (without a seed: the mean over seeds), an arm, `published/...`, `data` |
| metric | `accuracy`, a training metric, `reward`, ... |
| at | step, checkpoint or statistic of a curve: `45`, `last`, `minimum`; empty where the subject says the epoch |
| subset, samples, shots | of the questions or tasks: `prefix` or `test`; how many; shots or `mean` |
| mode | decoding of an agent: `sampled` or `greedy` |
| family | Holm family of a comparison |
| quoted | file of the reference that prints a published number |
| value, low, high | with the 95 % interval, in percent, points or the metric's own unit |
| p, p_holm, detectable | of a comparison |
| n, runs | questions or tasks, and training runs behind it |
| printed | a published number as printed |
| role | `primary` or `secondary`, of endpoints and comparisons |
| how | what the value is: a test's name, a formula |
| source | the artefact and its lines, as `results/lever/tables/scores.csv:12` or, of a mean, `...csv:12+31+50` |

The source of a derived row is the keys that it is made of, between ` | `: a key may hold blanks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.policy_names import PolicyName
from lever_pipe.report.long_format import csv_text, read_csv

CONDITIONS = ("at", "subset", "samples", "shots", "mode", "family", "quoted")
"""What tells rows apart beside whose quantity it is, and which."""
NUMBERS = ("value", "low", "high", "p", "p_holm", "detectable")
DESCRIBED = ("stage", "preset", "base_rce_epoch", "kl_beta", "seed", "epoch")
"""Parts of the subject's name, written for readers of the file; they are no part of a row's identity."""
MEAN = "mean"
"""The shot count of a mean over all shots of a question."""
ALPHA = 0.05
"""A comparison whose Holm-adjusted p lies below counts as separated."""
PRIMARY, SECONDARY = "primary", "secondary"
"""Roles of endpoints and comparisons."""
OF_ONE_RUN, BY_SHOTS, TOGETHER = "-one-run", "-by-shots", "-together"
"""Ends of the names of families: what infers to further questions only, what stands beside the primary endpoint, and
what is adjusted with the same family of other presets."""
SIGN_FLIP, STUDENT = "sign flip", "Student's t"
"""The two tests of comparisons: of one run against one run, and wherever there are several."""
NAN = math.nan
DERIVED = "report"
"""Study of the rows that tables and claims derive."""
BETWEEN = " | "
"""Stands between the keys in a derived row's source; no key holds it."""


class EvidenceRow(NamedTuple):
    """One quantity; NaN stands where a number does not apply."""

    study: str
    subject: str
    metric: str
    value: float
    against: str = ""
    at: str = ""
    subset: str = ""
    samples: str = ""
    shots: str = ""
    mode: str = ""
    family: str = ""
    quoted: str = ""
    low: float = NAN
    high: float = NAN
    p: float = NAN
    p_holm: float = NAN
    detectable: float = NAN
    n: int = 0
    runs: int = 0
    printed: str = ""
    role: str = ""
    how: str = ""
    source: str = ""

    @property
    def key(self) -> str:
        """Return the reference to this row: its identity, as `lever:baseline/random:accuracy:samples=800:shots=1`."""
        rest = [f"{name}={text}" for name, text in zip(CONDITIONS, self[5:12], strict=True) if text]
        against = f" - {self.against}" if self.against else ""
        return ":".join([self.study, f"{self.subject}{against}", self.metric, *rest])

    @property
    def operands(self) -> list[str]:
        """Return the keys that a derived row is made of."""
        return self.source.split(BETWEEN) if self.study == DERIVED and self.source else []

    @property
    def has_interval(self) -> bool:
        """Return whether an interval is known."""
        return not math.isnan(self.low)


HEAD = (*EvidenceRow._fields, *DESCRIBED)
MEASURED = tuple(map(EvidenceRow._fields.index, NUMBERS))
COUNTED = tuple(map(EvidenceRow._fields.index, ("n", "runs")))


def adjusted_in(family: str) -> str:
    """Return what the families have in common that are adjusted as one."""
    return family.removeprefix("preset~").partition("/")[2] or family if TOGETHER in family else family


class Evidence:
    """All rows, found by their identity or by any of their parts."""

    def __init__(self, rows: Iterable[EvidenceRow] = ()) -> None:
        """Hold rows.

        Raises:
            RecordError: two rows have one identity.
        """
        self._by_key: dict[str, EvidenceRow] = {}
        self._lines: dict[str, int] = {}
        self._by_location: dict[tuple[str, str | None], list[EvidenceRow]] = {}
        self.add(rows)

    def add(self, rows: Iterable[EvidenceRow]) -> None:
        """Hold further rows.

        Raises:
            RecordError: two rows have one identity.
        """
        for row in rows:
            key = row.key
            if key in self._by_key:
                both = [f"{each.value!r} of {each.source or 'nowhere'}" for each in (self._by_key[key], row)]
                expected = f"{key}: expected one row"
                raise RecordError(expected, found=" and ".join(both), do="Drop one, or tell them apart.")
            self._by_key[key] = row
            self._lines[key] = len(self._lines) + 2  # behind the head
            for subject in (row.subject, None):
                self._by_location.setdefault((row.metric, subject), []).append(row)

    def __iter__(self) -> Iterator[EvidenceRow]:
        """Yield every row in the order in which it came."""
        return iter(self._by_key.values())

    def line(self, key: str) -> int:
        """Return the line of a row in a file of all rows."""
        return self._lines[key]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._by_key)

    def at(self, key: str) -> EvidenceRow:
        """Return the row of a reference.

        Raises:
            RecordError: there is none.
        """
        row = self._by_key.get(key)
        if row is None:
            raise RecordError(f"expected the evidence row {key}", found="none", do="Run the rule that measures it.")
        return row

    def find(self, subject: str, metric: str, **parts: Any) -> EvidenceRow | None:
        """Return the row with exactly these parts (those not named are empty), or None."""
        return self._by_key.get(_key(subject, metric, parts))

    def get(self, subject: str, metric: str, **parts: Any) -> EvidenceRow:
        """Return the row with exactly these parts.

        Raises:
            RecordError: there is none.
        """
        return self.at(_key(subject, metric, parts))

    def where(self, subject: str | None = None, metric: str | None = None, **parts: Any) -> list[EvidenceRow]:
        """Return the rows with these parts, whatever the others are, in order."""
        rows: Iterable[EvidenceRow] = self._by_location.get((metric, subject), ()) if metric is not None else self
        parts |= {"subject": subject} if metric is None and subject is not None else {}
        texts = {name: str(value) for name, value in parts.items()}
        return [row for row in rows if all(getattr(row, name) == text for name, text in texts.items())]

    def subjects(self, metric: str, **parts: Any) -> list[str]:
        """Return whose quantities of a metric there are, each once, in order."""
        return list(dict.fromkeys(row.subject for row in self.where(metric=metric, **parts)))


def _key(subject: str, metric: str, parts: Mapping[str, Any]) -> str:
    texts: dict[str, Any] = {"study": "lever"} | {name: str(value) for name, value in parts.items()}
    return EvidenceRow(subject=subject, metric=metric, value=NAN, **texts).key


def write_evidence(path: Path, rows: Iterable[EvidenceRow]) -> None:
    """Write rows as CSV, each with the parts of its subject's name behind it."""
    storage.write_text(path, csv_text(HEAD, ()) + evidence_text(rows))


def evidence_text(rows: Iterable[EvidenceRow]) -> str:
    """Return rows as CSV without a head."""
    lines = ([cell if isinstance(cell, float) else cell or "" for cell in row] for row in rows)
    return csv_text((), ((*line, *described(str(line[1]))) for line in lines))


def read_evidence(path: Path) -> list[EvidenceRow]:
    """Return the rows of a file.

    Raises:
        RecordError: no file, another header, or a cell that is no number where one must be.
    """
    lines, width = read_csv(path, HEAD), len(EvidenceRow._fields)
    return [_parsed(path, number, line[:width]) for number, line in enumerate(lines[1:], start=2)]


@cache
def described(subject: str) -> tuple[str, ...]:
    """Return stage, preset, base, beta, seed and epoch of a policy's name; empty texts for another subject."""
    try:
        name = PolicyName.parse(subject)
    except RecordError:
        return ("",) * len(DESCRIBED)
    beta = "" if name.beta is None else f"{name.beta:g}"
    numbers = ["" if value is None else str(value) for value in (name.base, name.seed, name.epoch)]
    return (name.kind, name.preset, numbers[0], beta, numbers[1], numbers[2])


def _parsed(path: Path, number: int, cells: Sequence[str]) -> EvidenceRow:
    values: list[Any] = list(cells)
    try:
        for i in MEASURED:
            values[i] = float(values[i]) if values[i] else NAN
        for i in COUNTED:
            values[i] = int(values[i] or 0)
        return EvidenceRow._make(values)
    except (IndexError, TypeError, ValueError) as error:
        expected = f"{path}:{number}: expected an evidence row"
        raise RecordError(expected, found=str(error), do="Run its rule again.") from None
