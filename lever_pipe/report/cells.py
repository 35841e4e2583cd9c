"""What stands in a cell or a sentence, before anything is text: numbers with their evidence, messages and plain values.

Nothing here is formatted: `catalogue.Translator` writes each kind in a language, at the very end. A number is either a
quantity of the evidence (`source` is its row's key) or made of such (`operands` are their keys); `EvidenceLedger.note`
gives the latter rows of their own, so that everything printed is found in the evidence.
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
        value: in the unit in which it is printed.
        digits: decimals that it is printed with.
        source: key of its row; empty for a derived number until `EvidenceLedger.note`.
        sign: whether a positive number shows its sign.
        low: lower end of the 95 % interval; NaN without one.
        high: upper end.
        interval_digits: decimals of the ends.
        unit: printed behind it, such as ` %`.
        printed: the text of a published number, which replaces the formatted one.
        part: the column of the row that the value is: `value`, `p_holm`, ...
        operands: keys of the rows that a derived number is made of.
        how: what is done with them, or what is tested and how: all p values of one test share a row.
        is_p: whether it is a p value, `<0.001` below what three decimals show.
        line: of its row in the file of all rows; 0 until `EvidenceLedger.note`.
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
        """Return the number in an element that names its line of the evidence; templates write it so."""
        text, interval = self.parts
        small = f" <small>{interval}</small>" if interval else ""
        return f'<span data-e="{self.line}">{escape(text)}{small}</span>' if self.line else f"{escape(text)}{small}"

    @property
    def parts(self) -> tuple[str, str]:
        """Return the number as text, and its interval in brackets or nothing."""
        if self.is_p:
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
    """A sentence or phrase in English, with its arguments."""

    text: str
    args: tuple[tuple[str, Cell], ...] = ()


Cell: TypeAlias = "Estimate | Message | str | float | list[Any] | tuple[Any, ...] | None"
"""A cell or argument: an int counts, a float is a configured value, a text is a name or English, a list is one in words
(`a, b and c`), a tuple has parts one after another (`a; b`), None is an absent cell."""


def message(text: str, /, **args: Any) -> Message:
    """Return a message."""
    return Message(text, tuple(args.items()))


def code(name: str) -> str:
    """Return a name as it stands in configuration and files: of a preset, an arm, a column."""
    return f"`{name}`"


def level(row: EvidenceRow | None, digits: int = 2, *, scale: float = 1.0, interval: bool = True) -> Estimate | None:
    """Return a row's value as a cell, with its interval where it has one; None of no row or of an absent value."""
    if row is None or math.isnan(row.value):
        return None
    ends = (scale * row.low, scale * row.high) if interval else (math.nan, math.nan)
    few = max(1, digits - 1)
    return Estimate(scale * row.value, digits, row.key, False, *ends, interval_digits=few, printed=row.printed)


def gap(row: EvidenceRow | None, digits: int = 2, *, scale: float = 1.0) -> Estimate | None:
    """Return a comparison's difference as a cell, signed and with its interval; None of no row."""
    number = level(row, digits, scale=scale)
    return None if number is None else replace(number, sign=True)


def part(row: EvidenceRow | None, name: str, digits: int = 2, *, scale: float = 1.0) -> Estimate | None:
    """Return another column of a row as a cell, such as `detectable` or `n`; None of no row or of NaN."""
    value = math.nan if row is None else float(getattr(row, name))
    return None if row is None or math.isnan(value) else Estimate(scale * value, digits, row.key, part=name)


def p_value(value: float, source: str = "", *, part: str = "p_holm", how: str = "") -> Estimate:
    """Return a p value as a cell."""
    return Estimate(value, 3, source, part=part, how=how, is_p=True)


def holm(row: EvidenceRow | None) -> Estimate | None:
    """Return a comparison's adjusted p value as a cell; None of no row or without a test."""
    return None if row is None or math.isnan(row.p_holm) else p_value(row.p_holm, row.key)


def verdict(p: float) -> str:
    """Return whether a p value separates two sides."""
    return "separated" if p < ALPHA else "not separated"


def derived(
    value: float | None, digits: int, operands: Iterable[Estimate | EvidenceRow | None], how: str, *, sign: bool = False
) -> Estimate | None:
    """Return a number that is worked out from others, which it names; None where it cannot be."""
    if value is None or math.isnan(value):
        return None
    keys = [key for operand in operands if operand is not None for key in source_keys(operand)]
    return Estimate(float(value), digits, sign=sign, operands=tuple(dict.fromkeys(keys)), how=how)


def source_keys(operand: Estimate | EvidenceRow) -> tuple[str, ...]:
    """Return the rows that a number or row stands for; a derived number has no row yet, but those it is made of."""
    if isinstance(operand, EvidenceRow):
        return (operand.key,)
    return (operand.source,) if operand.source else operand.operands


def minus(left: Estimate | None, right: Estimate | None, digits: int | None = None) -> Estimate | None:
    """Return left - right, signed; None where either is absent."""
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
    """Return the mean of cells; None where one is absent or there is none."""
    numbers = [cell for cell in cells if cell is not None]
    if not numbers or len(numbers) < len(cells):
        return None
    value = math.fsum(cell.value for cell in numbers) / len(numbers)
    return derived(value, numbers[0].digits if digits is None else digits, numbers, "mean")


@dataclass(slots=True)
class EvidenceLedger:
    """The evidence of a report, with the rows of what its tables and sentences derive."""

    evidence: Evidence
    rows: list[EvidenceRow] = field(default_factory=list)
    tests: dict[tuple[str, float], EvidenceRow] = field(default_factory=dict)
    """The row of each p value that several places print."""

    def note(self, cell: Any, subject: str, metric: str) -> Any:
        """Return a cell, or what a template is told, whose derived numbers have rows named by where they stand.

        Raises:
            RecordError: two numbers stand in one place, or one refers to a row that is missing.
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
            self.evidence.at(cell.source)
            return replace(cell, line=self.evidence.line(cell.source))
        keys = source_keys(cell)
        for key in keys:
            self.evidence.at(key)
        row = EvidenceRow(DERIVED, subject, metric, float(cell.value), how=cell.how or "p", source=BETWEEN.join(keys))
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
