"""Numbers that know how far they are rounded, so that arithmetic on printed numbers can be judged."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import NamedTuple

from lever_pipe.report.claims.verdicts import NotTestable
from lever_pipe.report.tables.text import number

MEASURED_ROUNDING = 1e-6
"""Relative error of a logged number: float32 sums over some hundred groups, written with nine digits."""
SIGNIFICANT = 6
WHOLE_IS_ZERO = "The comparison needs a share of a number that is zero."


class Quantity(NamedTuple):
    """A number with the decimals it is shown with and the largest error of its rounding."""

    value: float
    digits: int
    rounding: float

    def __str__(self) -> str:
        return number(self.value, self.digits)


def printed(text: str, digits: int | None = None) -> Quantity:
    """Return a number as printed: half a unit of its last decimal is its rounding.

    `digits` overrules the decimals of `text` where a table of numbers dropped closing zeros.
    """
    exponent = Decimal(text).as_tuple().exponent
    decimals = max(0, -exponent) if isinstance(exponent, int) else 0
    shown = decimals if digits is None else max(decimals, digits)
    return Quantity(float(text), shown, 0.5 * 10.0**-shown)


def decimals_of(text: str) -> int:
    """Return how many decimals a printed number has."""
    return printed(text).digits


def exact(value: float, digits: int) -> Quantity:
    """Return a number without rounding, such as a count or a setting."""
    return Quantity(value, digits, 0.0)


def percent_of(part: float, whole: float) -> float:
    """Return a share or relative change in percent.

    Raises:
        NotTestable: of zero there is none.
    """
    if not whole:
        raise NotTestable(WHOLE_IS_ZERO)
    return 100 * part / whole


def measured(value: float) -> Quantity:
    """Return a logged number, shown with six significant digits."""
    size = math.floor(math.log10(abs(value))) if value else 0
    return Quantity(value, max(0, min(12, SIGNIFICANT - 1 - size)), MEASURED_ROUNDING * abs(value))
