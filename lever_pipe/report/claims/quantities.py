"""Numbers that know their rows, how far they are rounded, and the arithmetic that made them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np
import scipy

from lever_pipe.report.catalogue import number_text
from lever_pipe.report.cells import Cell, Name, Number, PValue, Series, say
from lever_pipe.report.claims.verdicts import Check, Part, lacking
from lever_pipe.report.evidence import EvidenceRow

MEASURED_ROUNDING = 1e-6
"""Relative error of a logged number: float32 sums over some hundred groups, written with nine digits."""
SIGNIFICANT = 6


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with the decimals it is shown with and the largest error of its rounding.

    `of` are the keys of the rows behind it, and `terms` the arithmetic as it is written; a number that a claim states
    has neither.
    """

    value: float
    digits: int
    rounding: float = 0.0
    of: tuple[str, ...] = ()
    terms: tuple[Cell, ...] = ()
    how: str = ""
    sign: bool = False

    @property
    def cell(self) -> Cell:
        """Return the number as it is printed."""
        if not self.of:
            return Name(number_text(self.value, self.digits, sign=self.sign))
        if len(self.of) == 1 and not self.how:
            return Number(self.value, self.digits, self.of[0], sign=self.sign)
        return Number(self.value, self.digits, sign=self.sign, of=self.of, how=self.how)

    @property
    def written(self) -> tuple[Cell, ...]:
        """Return the arithmetic, of a plain number itself."""
        return self.terms or (self.cell,)

    @property
    def equation(self) -> Cell:
        """Return the arithmetic as one cell."""
        return Series(self.written, "spaced")

    def __sub__(self, other: Quantity) -> Quantity:
        return replace(_joined(self, "-", other, self.value - other.value), sign=True)

    def __add__(self, other: Quantity) -> Quantity:
        return _joined(self, "+", other, self.value + other.value)

    def __rmul__(self, factor: float) -> Quantity:
        terms = (Name(f"{factor:g}"), Name("x"), *self.written)
        return replace(self, value=factor * self.value, rounding=abs(factor) * self.rounding, terms=terms, how="x")

    def shown(self, digits: int) -> Quantity:
        """Return the number with other decimals."""
        return replace(self, digits=digits)


def _joined(left: Quantity, sign: str, right: Quantity, value: float) -> Quantity:
    terms, digits = (*left.written, Name(sign), *right.written), max(left.digits, right.digits)
    return Quantity(value, digits, left.rounding + right.rounding, keys_of(left, right), terms, sign)


def keys_of(*quantities: Quantity) -> tuple[str, ...]:
    """Return the rows behind quantities, each once."""
    return tuple(dict.fromkeys(key for each in quantities for key in each.of))


def printed(text: str, digits: int | None = None, *, of: EvidenceRow | None = None) -> Quantity:
    """Return a number as printed: half a unit of its last decimal is its rounding.

    `digits` overrules the decimals of `text` where a table of numbers dropped closing zeros.
    """
    decimals = decimals_of(text)
    shown = decimals if digits is None else max(decimals, digits)
    return Quantity(float(text), shown, 0.5 * 10.0**-shown, () if of is None else (of.key,), sign=text.startswith("+"))


def decimals_of(text: str) -> int:
    """Return how many decimals a printed number has."""
    exponent = Decimal(text).as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def measured(value: float, of: Sequence[str], how: str = "") -> Quantity:
    """Return a logged number, shown with six significant digits."""
    size = math.floor(math.log10(abs(value))) if value else 0
    digits = max(0, min(12, SIGNIFICANT - 1 - size))
    return Quantity(value, digits, MEASURED_ROUNDING * abs(value), tuple(of), how=how)


def percent(part: Quantity, whole: Quantity, digits: int = 2) -> Quantity:
    """Return 100 part / whole.

    Raises:
        NotTestable: of zero there is none.
    """
    if not whole.value:
        raise lacking("share_of_zero")
    terms = (say("claims.percent", part=part.equation, whole=whole.cell),)
    rounding = 100 * part.rounding / abs(whole.value)
    return Quantity(100 * part.value / whole.value, digits, rounding, keys_of(part, whole), terms, "percent")


def average(of: Sequence[Quantity], digits: int = 3) -> Quantity:
    """Return a mean of numbers."""
    value, rounding = math.fsum(each.value for each in of) / len(of), max(each.rounding for each in of)
    return Quantity(value, digits, rounding, keys_of(*of), how="mean")


def held(found: Quantity, said: Quantity, word: str = "printed", *, what: Cell = None, digits: int = 0) -> Part:
    """Hold what arithmetic gives against what is printed or logged."""
    value, how = found.shown(digits or said.digits).cell, say(f"claims.word.{word}")
    numbers = say("claims.equation", terms=found.equation, value=value, word=how, said=said.cell)
    return Part(Check(found.value - said.value, found.rounding + said.rounding), labelled(what, numbers))


def equal(found: Quantity, said: Quantity, what: Cell = None) -> Part:
    """Hold a number against another as it is."""
    numbers = labelled(what, say("claims.is", value=found.cell, said=said.cell))
    return Part(Check(found.value - said.value, found.rounding + said.rounding), numbers)


def less(
    name: str, values: Mapping[Any, Quantity], *, test: str = "", p: float | None = None, needed: float = 0.0
) -> Iterator[Part]:
    """Yield by how much the first of two values is less, with their name, `claims.name.NAME`, and the test of it."""
    first, second = values.values()
    yield Part(Check(second.value - first.value, needed, p), labelled(say(f"claims.name.{name}"), listed(values)))
    if p is not None:
        yield Part(None, p_value(test, p))


def labelled(what: Cell, numbers: Cell) -> Cell:
    """Return `what: numbers`, the numbers alone where nothing names them."""
    return numbers if what is None else say("claims.labelled", what=what, numbers=numbers)


def named(**values: Quantity | Cell) -> Cell:
    """Return values by the ids of their names, `claims.name.ID`."""
    return listed({say(f"claims.name.{name}"): value for name, value in values.items()})


def listed(values: Mapping[Any, Quantity | Cell] | Sequence[tuple[Cell, Quantity | Cell]]) -> Cell:
    """Return `0.0355 (0.12) and 0.0351 (0.15)`: values with what names them, a KL_BETA or a cell."""
    pairs = values.items() if isinstance(values, Mapping) else values
    return Series(
        tuple(
            say("claims.of", name=name, value=value.cell if isinstance(value, Quantity) else value)
            for name, value in pairs
        )
    )


def p_value(test: str, p: float, how: str = "") -> Cell:
    """Return a p value behind the name of its test, `claims.test.TEST`; with `how` other tables print it, too."""
    return say(f"claims.test.{test}", p=PValue(p, how=how))


def t_p(differences: Sequence[float]) -> float:
    """Return the two-sided p value of paired differences over seeds; 1 of equal pairs or of a single one.

    Source: Student 1908
    """
    if len(differences) < 2 or not any(differences):
        return 1.0
    if np.ptp(differences) == 0:
        return 0.0
    return float(scipy.stats.ttest_1samp(differences, 0.0).pvalue)
