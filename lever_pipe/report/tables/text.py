"""Numbers and lists as the tables print them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from decimal import ROUND_HALF_UP, Decimal

ABSENT = ""
"""A cell without a number; Markdown prints it as a dash."""
INTERVAL = re.compile(r"(?P<value>[+-]?\d+(?:\.\d+)?) \[(?P<low>-?\d+\.\d+), (?P<high>-?\d+\.\d+)\]")
"""A cell that `bracketed` wrote."""


def number(value: float | None, digits: int) -> str:
    """Return `value` with `digits` decimals, halves away from zero, or an absent cell.

    Means of published one-decimal numbers often end in 5; binary rounding would print them at random.
    """
    if value is None or math.isnan(value):
        return ABSENT
    unit = Decimal(1).scaleb(-digits)
    rounded = Decimal(f"{value:.12f}").quantize(unit, rounding=ROUND_HALF_UP)
    return f"{abs(rounded) if rounded.is_zero() else rounded:f}"


def digits_text(value: float, significant: int = 3) -> str:
    """Return a number with this many significant digits and no exponent, or an absent cell."""
    if math.isnan(value):
        return ABSENT
    size = math.floor(math.log10(abs(value))) if value else 0
    return number(value, max(0, min(9, significant - 1 - size)))


def signed(value: float | None, digits: int) -> str:
    """Return `value` with its sign, zero without one, or an absent cell."""
    text = number(value, digits)
    return f"+{text}" if text and float(text) > 0 else text


def bracketed(text: str, low: float, high: float, digits: int = 1) -> str:
    """Return a printed number with its interval, `57.00 [54.1, 59.8]`; `INTERVAL` reads it back."""
    return f"{text} [{number(low, digits)}, {number(high, digits)}]"


def beta_text(beta: float) -> str:
    """Return a KL beta as the documents write it: `0.145`."""
    return f"{beta:g}"


def listing(values: Iterable[object]) -> str:
    """Return `a`, `a and b` or `a, b and c`."""
    texts = [str(value) for value in values]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}" if texts else "none"


def span(values: Sequence[int]) -> str:
    """Return sorted whole numbers with runs drawn together: `1-3, 5`."""
    runs: list[list[int]] = []
    for value in sorted(set(values)):
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def difference(left: float | None, right: float | None) -> float | None:
    """Return `left - right`, or None where either is absent."""
    return None if left is None or right is None else left - right


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean, or None where a value is absent or there is none."""
    known = list(values)
    present = [value for value in known if value is not None]
    return sum(present) / len(present) if present and len(present) == len(known) else None


def sentences(*parts: str) -> str:
    """Return the parts that are not empty as one paragraph."""
    return " ".join(part for part in parts if part)
