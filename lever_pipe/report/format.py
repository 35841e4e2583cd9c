"""How estimates are written: decimals, signs, intervals and p values."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Decimal

MOST_DIGITS = 12
"""Decimals that are told apart; beyond them a binary number holds rounding errors."""
ABSENT = "–"
"""What a table shows for an absent cell."""


def number_text(value: float, digits: int, *, sign: bool = False) -> str:
    """Return a number with `digits` decimals, halves away from zero: binary rounding would print them at random."""
    if math.isinf(value):
        return "∞"
    rounded = Decimal(f"{value:.12f}").quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_UP)
    text = f"{abs(rounded) if rounded.is_zero() else rounded:f}"
    return f"+{text}" if sign and not rounded.is_zero() and rounded > 0 else text


def ends_of(low: float, high: float, digits: int, *, sign: bool = False) -> list[str]:
    """Return the ends of an interval, with decimals more for one that would print as the 0 that they leave out."""
    leave_out = low > 0 or high < 0
    return [
        telling_text(end, digits, 0.0, sign=sign) if leave_out else number_text(end, digits, sign=sign)
        for end in (low, high)
    ]


def telling_text(value: float, digits: int, border: float, *, sign: bool = False) -> str:
    """Return a number with as many decimals, `digits` or more, as tell it from a border on which a verdict turns."""
    texts = (number_text(value, n, sign=sign) for n in range(digits, MOST_DIGITS))
    return next((text for text in texts if float(text) != border), number_text(value, digits, sign=sign))
