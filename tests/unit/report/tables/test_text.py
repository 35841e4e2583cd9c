from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.report.tables import text


@pytest.mark.parametrize(
    ("value", "digits", "expected"),
    [
        (56.125, 2, "56.13"),  # a half goes away from zero; format() would print 56.12
        (55.85 - 56.125, 2, "-0.28"),  # stored as -0.27499999999999858
        (-0.0, 2, "0.00"),
        (-1e-12, 8, "0.00000000"),
        (-9e-08, 8, "-0.00000009"),
        (None, 2, ""),
        (math.nan, 2, ""),
    ],
)
def test_number(value: float | None, digits: int, expected: str) -> None:
    assert text.number(value, digits) == expected


@given(st.floats(-1000, 1000), st.integers(0, 6))
def test_number_is_within_half_a_unit(value: float, digits: int) -> None:
    # 1e-9: the value is read to twelve decimals before it is rounded
    assert abs(float(text.number(value, digits)) - value) <= 0.5 * 10**-digits + 1e-9


@pytest.mark.parametrize(
    ("value", "expected"), [(0.5, "+0.5"), (-0.5, "-0.5"), (0.0, "0.0"), (0.01, "0.0"), (None, "")]
)
def test_signed(value: float | None, expected: str) -> None:
    assert text.signed(value, 1) == expected


@pytest.mark.parametrize(("values", "expected"), [([3, 1, 2, 5], "1-3, 5"), ([7], "7"), ([], ""), ([1, 1, 2], "1-2")])
def test_span(values: list[int], expected: str) -> None:
    assert text.span(values) == expected


@pytest.mark.parametrize(("values", "expected"), [([], "none"), ([1], "1"), ([1, 2], "1 and 2"), ("abc", "a, b and c")])
def test_listing(values: list[object], expected: str) -> None:
    assert text.listing(values) == expected


def test_mean_of_a_gap_is_a_gap() -> None:
    assert text.mean([1.0, 2.0]) == 1.5
    assert text.mean([1.0, None]) is None
    assert text.mean([]) is None
    assert text.difference(None, 1.0) is None
