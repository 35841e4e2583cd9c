"""Unformatted contents of cells and sentences: numbers with their evidence, messages and plain values.

`catalogue.Translator` formats them in a language at the very end. A number is either a quantity of the evidence
(`source` is its row's key) or derived from such quantities (`operands` are their keys). `EvidenceLedger.note` adds rows
for derived numbers, so that the evidence contains every printed number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from markupsafe import escape

from lever_pipe.report.evidence import ALPHA, BETWEEN, DERIVED, Evidence, EvidenceRow
from lever_pipe.report.format import ends_of, number_text, telling_text


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number of the evidence.

    Attributes:
        value: in its printed unit.
        digits: printed decimals.
        source: key of its row; empty for a derived number until `EvidenceLedger.note`.
        sign: whether to print the sign of a positive number.
        low: lower end of the 95 % interval; NaN without one.
        high: upper end.
        interval_digits: decimals of the ends.
        unit: printed after the number, such as ` %`.
        printed: the text of a published number, which replaces the formatted one.
        part: column of the row that contains the value: `value`, `p_holm`, ...
        operands: keys of the rows from which a number is derived.
        how: formula, or the name of a test; all p values of one test share a row.
        is_p: whether it is a p value; it prints as `<0.001` if it is smaller.
        line: its row's line in the file of all rows; 0 until `EvidenceLedger.note`.
    """

    value: float
    digits: int
    source: str = ""
    sign: bool = False
    low: float = math.nan
    high: float = math.nan
    interval_digits: int = 1
    unit: str = ""
    printed: str = ""
    part: str = "value"
    operands: tuple[str, ...] = ()
    how: str = ""
    is_p: bool = False
    line: int = 0

    def __str__(self) -> str:
        """Return the number with its interval."""
        return " ".join(filter(None, self.parts))

    def __html__(self) -> str:
        """Return the number as an HTML element that names its line of the evidence; Jinja templates call this."""
        text, interval = self.parts
        small = f" <small>{interval}</small>" if interval else ""
        return f'<span data-e="{self.line}">{escape(text)}{small}</span>' if self.line else f"{escape(text)}{small}"

    @property
    def parts(self) -> tuple[str, str]:
        """Return the number as text, and its interval in brackets or an empty text."""
        if self.is_p:
            # One more decimal near ALPHA, and further ones until the text differs from ALPHA.
            digits = 3 + (0.04 < self.value < 0.06)
            return "<0.001" if self.value < 0.001 else telling_text(self.value, digits, ALPHA), ""
        text = self.printed or number_text(self.value, self.digits, sign=self.sign)
        if math.isnan(self.low):
            return f"{text}{self.unit}", ""
        return f"{text}{self.unit}", f"[{', '.join(ends_of(self.low, self.high, self.interval_digits))}]"

    @property
    def plain(self) -> Estimate:
        """Return the number without its interval."""
        return replace(self, low=math.nan, high=math.nan)


@dataclass(frozen=True, slots=True)
class Message:
    """A sentence or phrase in English, with its arguments; of a pair, the count `n` selects singular or plural."""

    text: str | tuple[str, str]
    args: tuple[tuple[str, Cell], ...] = ()


Cell: TypeAlias = "Estimate | Message | str | float | list[Any] | tuple[Any, ...] | None"
"""A cell or argument. An int is a count, a float a configured value, a text a name or English. A list is written in
words (`a, b and c`), a tuple as separate parts (`a; b`). None is an absent cell."""


def message(text: str | tuple[str, str], /, **args: Any) -> Message:
    """Return a message."""
    return Message(text, tuple(args.items()))


def code(name: str) -> str:
    """Mark a name of the configuration or a file as code: a preset, an arm, a column."""
    return f"`{name}`"


def level(row: EvidenceRow | None, digits: int = 2, *, scale: float = 1.0, interval: bool = True) -> Estimate | None:
    """Return a row's value as a cell with its interval, if any; None without a row or a value."""
    if row is None or math.isnan(row.value):
        return None
    ends = (scale * row.low, scale * row.high) if interval else (math.nan, math.nan)
    few = max(1, digits - 1)
    return Estimate(scale * row.value, digits, row.key, False, *ends, interval_digits=few, printed=row.printed)


def gap(row: EvidenceRow | None, digits: int = 2, *, scale: float = 1.0) -> Estimate | None:
    """Return a comparison's difference as a signed cell with its interval; None without a row."""
    number = level(row, digits, scale=scale)
    return None if number is None else replace(number, sign=True)


def part(row: EvidenceRow | None, name: str, digits: int = 2, *, scale: float = 1.0) -> Estimate | None:
    """Return another column of a row as a cell, such as `detectable` or `n`; None without a row or for NaN."""
    value = math.nan if row is None else float(getattr(row, name))
    return None if row is None or math.isnan(value) else Estimate(scale * value, digits, row.key, part=name)


def p_value(value: float, source: str = "", *, part: str = "p_holm", how: str = "") -> Estimate:
    """Return a p value as a cell."""
    return Estimate(value, 3, source, part=part, how=how, is_p=True)


def holm(row: EvidenceRow | None) -> Estimate | None:
    """Return a comparison's adjusted p value as a cell; None without a row or a test."""
    return None if row is None or math.isnan(row.p_holm) else p_value(row.p_holm, row.key)


def derived(
    value: float | None, digits: int, operands: Iterable[Estimate | EvidenceRow | None], how: str, *, sign: bool = False
) -> Estimate | None:
    """Return a number derived from operands, whose keys it stores; None for an absent or NaN value."""
    if value is None or math.isnan(value):
        return None
    keys = [key for operand in operands if operand is not None for key in source_keys(operand)]
    return Estimate(float(value), digits, sign=sign, operands=tuple(dict.fromkeys(keys)), how=how)


def source_keys(operand: Estimate | EvidenceRow) -> tuple[str, ...]:
    """Return the row keys of a number: its own key, or its operands' keys if it is derived and has no row yet."""
    if isinstance(operand, EvidenceRow):
        return (operand.key,)
    return (operand.source,) if operand.source else operand.operands


def minus(left: Estimate | None, right: Estimate | None, digits: int | None = None) -> Estimate | None:
    """Return left - right, signed; None if either is absent."""
    if left is None or right is None:
        return None
    return derived(
        left.value - right.value,
        left.digits if digits is None else digits,
        (left, right),
        "left minus right",
        sign=True,
    )


def average(cells: Sequence[Estimate | None], digits: int | None = None) -> Estimate | None:
    """Return the mean of cells; None if there are none or one is absent."""
    numbers = [cell for cell in cells if cell is not None]
    if not numbers or len(numbers) < len(cells):
        return None
    # fsum rounds only once, so the mean does not depend on the order of the cells.
    value = math.fsum(cell.value for cell in numbers) / len(numbers)
    return derived(value, numbers[0].digits if digits is None else digits, numbers, "mean")


@dataclass(slots=True)
class EvidenceLedger:
    """The evidence of a report, extended by the rows that its tables and sentences derive."""

    evidence: Evidence
    rows: list[EvidenceRow] = field(default_factory=list)
    tests: dict[tuple[str, float], EvidenceRow] = field(default_factory=dict)
    """Rows of p values that are printed more than once, by test and value."""

    def note(self, cell: Any, subject: str, metric: str) -> Any:
        """Return a cell or a template's facts, after adding rows for all derived numbers, named by their location.

        Raises:
            RecordError: two numbers have the same location, or a number refers to a missing row.
        """
        match cell:
            case Estimate():
                return self._noted(cell, subject, metric)
            case Message():
                args = ((name, self.note(value, subject, f"{metric}.{name}")) for name, value in cell.args)
                return replace(cell, args=tuple(args))
            case dict():
                return {name: self.note(value, subject, f"{metric}.{name}") for name, value in cell.items()}
            case list() | tuple():
                return type(cell)(self.note(value, subject, f"{metric}.{i}") for i, value in enumerate(cell))
            case _:
                return cell

    def _noted(self, cell: Estimate, subject: str, metric: str) -> Estimate:
        if cell.source:
            # Raises if the row is missing.
            self.evidence.at(cell.source)
            return replace(cell, line=self.evidence.line(cell.source))
        keys = source_keys(cell)
        # Raises if an operand is missing.
        for key in keys:
            self.evidence.at(key)
        row = EvidenceRow(DERIVED, subject, metric, float(cell.value), how=cell.how or "p", source=BETWEEN.join(keys))
        # A test has one row, however often the pages print its p value.
        is_shared = cell.is_p and bool(cell.how)
        noted = self.tests.setdefault((cell.how, cell.value), row) if is_shared else row
        if noted is row:
            self.evidence.add([row])
            self.rows.append(row)
        return replace(cell, source=noted.key, part="value", line=self.evidence.line(noted.key))


def numbers_in(cell: Cell) -> list[Estimate]:
    """Return every number in a cell, in order."""
    match cell:
        case Estimate():
            return [cell]
        case Message():
            return [number for _, value in cell.args for number in numbers_in(value)]
        case list() | tuple():
            return [number for item in cell for number in numbers_in(item)]
        case _:
            return []
