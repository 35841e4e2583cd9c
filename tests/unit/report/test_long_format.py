from __future__ import annotations

import math

import pytest

from lever_pipe.report.long_format import csv_text, decimal


@pytest.mark.parametrize(
    ("value", "text"), [(58.8, "58.8"), (100.0, "100"), (1 / 3, "0.333333333"), (1e-12, "1e-12"), (math.nan, "")]
)
def test_decimal(value: float, text: str) -> None:
    assert decimal(value) == text


def test_absent_values_are_empty_fields_and_commas_are_quoted() -> None:
    assert csv_text(("a", "b"), [(None, "x, y"), (1, "")]) == 'a,b\n,"x, y"\n1,\n'
    assert csv_text((), [(1 / 3, math.nan)]) == "0.333333333,\n"
