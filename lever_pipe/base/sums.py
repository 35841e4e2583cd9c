"""Sums of floats with the same bits in every version of Python."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import add


def sum_in_order(values: Iterable[float]) -> float:
    """Return the sum from left to right, rounded after each addition.

    The built-in `sum` compensates rounding errors since Python 3.12, so its last bits depend on the version.
    """
    return reduce(add, values, 0)
