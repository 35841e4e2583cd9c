from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.report.page.numbers import numbers_in


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("57.00 [54.1, 59.8]", ["57.00", "54.1", "59.8"]),
        ("epochs 1-50, seed 0", ["1", "50", "0"]),
        ("Qwen2.5-VL-3B-Instruct", ["2.5", "3"]),
        ("-0.23% and +1.67%", ["-0.23", "+1.67"]),
        ("KL_BETA=-0.5", ["-0.5"]),
        ("9,009 of 124,036", ["9,009", "124,036"]),
        ("5e-06; 1.5E+3", ["5e-06", "1.5E+3"]),
        ("−1.0", ["−1.0"]),
        ("第-0.5个", ["-0.5"]),
        ("2025-12-20", ["2025", "12", "20"]),
        ("no number", []),
    ],
)
def test_numbers_are_read_as_printed(text: str, numbers: list[str]) -> None:
    assert numbers_in(text) == numbers


@given(st.lists(st.floats(-1e6, 1e6).map(lambda value: f"{value:.3f}"), max_size=5))
def test_a_sign_belongs_to_its_number(values: list[str]) -> None:
    assert numbers_in(" [".join(["", *values])) == values
