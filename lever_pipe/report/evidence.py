"""The evidence: every measured, published and derived quantity of the report, one row each.

A row contains the subject of a quantity (`subject`; of a comparison also `against`), its name (`metric`), its
conditions, its value with its interval, and its origin (`source`). Pages, claims and figures contain references to rows
(`EvidenceRow.key`) and no numbers of their own. So every number on a page can be traced by its reference.

| column | content |
|---|---|
| study | `lever`, `intention`, or `report` for derived rows of tables and claims |
| subject, against | a policy or its group (without a seed: the mean over seeds), an arm, `published/...`, `data` |
| metric | `accuracy`, a training metric, `reward`, ... |
| at | step, checkpoint or statistic of a curve: `45`, `last`, `minimum`; empty if the subject contains the epoch |
| subset, samples, shots | `prefix` or `test` of the questions or tasks; their number; shot count or `mean` |
| mode | decoding of an agent: `sampled` or `greedy` |
| family | Holm family of a comparison |
| quoted | file of the reference that prints a published number |
| value, low, high | with the 95 % interval, in percent, points or the metric's own unit |
| p, p_holm, detectable | of a comparison |
| n, runs | number of questions or tasks, and of training runs |
| printed | a published number as printed |
| role | `primary` or `secondary`, of endpoints and comparisons |
| how | method: a test's name, a formula |
| source | the artifact and its lines, as `results/lever/tables/scores.csv:12` or, of a mean, `...csv:12+31+50` |

The source of a derived row lists the keys of its operands, separated by ` | `, because a key may contain blanks.
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
"""Columns that identify a row, together with study, subject, against and metric."""
NUMBERS = ("value", "low", "high", "p", "p_holm", "detectable")
DESCRIBED = ("stage", "preset", "base_rce_epoch", "kl_beta", "seed", "epoch")
"""Parts of the subject's name, written for readers of the file; they do not identify a row."""
MEAN = "mean"
"""The shot count of a mean over all shots of a question."""
ALPHA = 0.05
"""A comparison with a smaller Holm-adjusted p counts as separated."""
PRIMARY, SECONDARY = "primary", "secondary"
"""Roles of endpoints and comparisons."""
OF_ONE_RUN, BY_SHOTS, TOGETHER = "-one-run", "-by-shots", "-together"
"""Suffixes of family names: inference to further questions only; secondary comparisons by shot count; adjusted
together with the same family of other presets."""
SIGN_FLIP, STUDENT = "sign flip", "Student's t"
"""The two tests of comparisons: for one run against one run, and for several runs."""
NAN = math.nan
DERIVED = "report"
"""Study of the rows that tables and claims derive."""
BETWEEN = " | "
"""Separator of the keys in a derived row's source; no key contains it."""


class EvidenceRow(NamedTuple):
    """One quantity; NaN marks a number that does not apply."""

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
        """Return the reference to this row, such as `lever:baseline/random:accuracy:samples=800:shots=1`."""
        # Fields 5 to 11 are CONDITIONS, in the same order.
        rest = [f"{name}={text}" for name, text in zip(CONDITIONS, self[5:12], strict=True) if text]
        against = f" - {self.against}" if self.against else ""
        return ":".join([self.study, f"{self.subject}{against}", self.metric, *rest])

    @property
    def operands(self) -> list[str]:
        """Return the keys of a derived row's operands."""
        return self.source.split(BETWEEN) if self.study == DERIVED and self.source else []

    @property
    def has_interval(self) -> bool:
        """Return whether the row has an interval."""
        return not math.isnan(self.low)


HEAD = (*EvidenceRow._fields, *DESCRIBED)
MEASURED = tuple(map(EvidenceRow._fields.index, NUMBERS))
COUNTED = tuple(map(EvidenceRow._fields.index, ("n", "runs")))


def adjusted_in(family: str) -> str:
    """Return the common name of families that are adjusted together."""
    return family.removeprefix("preset~").partition("/")[2] or family if TOGETHER in family else family


class Evidence:
    """All rows, indexed by their identity and by metric and subject."""

    def __init__(self, rows: Iterable[EvidenceRow] = ()) -> None:
        """Store rows.

        Raises:
            RecordError: two rows have the same identity.
        """
        self._by_key: dict[str, EvidenceRow] = {}
        self._lines: dict[str, int] = {}
        # Indexed by metric, with and without subject, so that a lookup does not scan all rows.
        self._by_location: dict[tuple[str, str | None], list[EvidenceRow]] = {}
        self.add(rows)

    def add(self, rows: Iterable[EvidenceRow]) -> None:
        """Add rows.

        Raises:
            RecordError: two rows have the same identity.
        """
        for row in rows:
            key = row.key
            if key in self._by_key:
                both = [f"{each.value!r} of {each.source or 'nowhere'}" for each in (self._by_key[key], row)]
                expected = f"{key}: expected one row"
                raise RecordError(expected, found=" and ".join(both), do="Drop one, or tell them apart.")
            self._by_key[key] = row
            self._lines[key] = len(self._lines) + 2  # line 1 is the header
            for subject in (row.subject, None):
                self._by_location.setdefault((row.metric, subject), []).append(row)

    def __iter__(self) -> Iterator[EvidenceRow]:
        """Yield every row in order of insertion."""
        return iter(self._by_key.values())

    def line(self, key: str) -> int:
        """Return a row's line number in a file of all rows."""
        return self._lines[key]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._by_key)

    def at(self, key: str) -> EvidenceRow:
        """Return the row with this key.

        Raises:
            RecordError: no row has it.
        """
        row = self._by_key.get(key)
        if row is None:
            raise RecordError(f"expected the evidence row {key}", found="none", do="Run the rule that measures it.")
        return row

    def find(self, subject: str, metric: str, **parts: Any) -> EvidenceRow | None:
        """Return the row with exactly these parts, or None; others are empty, except `study`, which is `lever`."""
        return self._by_key.get(_key(subject, metric, parts))

    def get(self, subject: str, metric: str, **parts: Any) -> EvidenceRow:
        """Return the row with exactly these parts.

        Raises:
            RecordError: there is no such row.
        """
        return self.at(_key(subject, metric, parts))

    def where(self, subject: str | None = None, metric: str | None = None, **parts: Any) -> list[EvidenceRow]:
        """Return all rows with these parts, in order; other parts may have any value."""
        rows: Iterable[EvidenceRow] = self._by_location.get((metric, subject), ()) if metric is not None else self
        parts |= {"subject": subject} if metric is None and subject is not None else {}
        texts = {name: str(value) for name, value in parts.items()}
        return [row for row in rows if all(getattr(row, name) == text for name, text in texts.items())]

    def subjects(self, metric: str, **parts: Any) -> list[str]:
        """Return the subjects that have a metric, each once, in order."""
        return list(dict.fromkeys(row.subject for row in self.where(metric=metric, **parts)))


def _key(subject: str, metric: str, parts: Mapping[str, Any]) -> str:
    texts: dict[str, Any] = {"study": "lever"} | {name: str(value) for name, value in parts.items()}
    return EvidenceRow(subject=subject, metric=metric, value=NAN, **texts).key


def write_evidence(path: Path, rows: Iterable[EvidenceRow]) -> None:
    """Write rows as CSV, each followed by the parts of its subject's name."""
    storage.write_text(path, csv_text(HEAD, ()) + evidence_text(rows))


def evidence_text(rows: Iterable[EvidenceRow]) -> str:
    """Return rows as CSV without a header."""
    # A count of 0 is an empty cell; `_parsed` reads it as 0.
    lines = ([cell if isinstance(cell, float) else cell or "" for cell in row] for row in rows)
    return csv_text((), ((*line, *described(str(line[1]))) for line in lines))


def read_evidence(path: Path) -> list[EvidenceRow]:
    """Return the rows of a file.

    Raises:
        RecordError: a missing file, another header, or a malformed number.
    """
    lines, width = read_csv(path, HEAD), len(EvidenceRow._fields)
    return [_parsed(path, number, line[:width]) for number, line in enumerate(lines[1:], start=2)]


# Cached, because many rows share a subject.
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
