"""Formatting of estimates: decimals, signs, intervals and p values."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Decimal

MOST_DIGITS = 12
"""Maximum number of decimals; further ones show binary rounding errors."""
ABSENT = "–"
"""Text of an absent cell."""


def number_text(value: float, digits: int, *, sign: bool = False) -> str:
    """Return a number with `digits` decimals, halves away from zero; binary rounding would print halves at random."""
    if math.isinf(value):
        return "∞"
    # Twelve decimals first, so that a binary 0.285 is a half and not slightly less.
    rounded = Decimal(f"{value:.12f}").quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_UP)
    # `abs` avoids a negative zero.
    text = f"{abs(rounded) if rounded.is_zero() else rounded:f}"
    return f"+{text}" if sign and not rounded.is_zero() and rounded > 0 else text


def ends_of(low: float, high: float, digits: int, *, sign: bool = False) -> list[str]:
    """Return the ends of an interval; if it excludes 0, ends that would print as 0 get more decimals."""
    leave_out = low > 0 or high < 0
    return [
        telling_text(end, digits, 0.0, sign=sign) if leave_out else number_text(end, digits, sign=sign)
        for end in (low, high)
    ]


def telling_text(value: float, digits: int, border: float, *, sign: bool = False) -> str:
    """Return a number with `digits` decimals, or more if its text would equal `border`, where a verdict turns."""
    texts = (number_text(value, n, sign=sign) for n in range(digits, MOST_DIGITS))
    return next((text for text in texts if float(text) != border), number_text(value, digits, sign=sign))
