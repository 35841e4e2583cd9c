from __future__ import annotations

import pytest

from lever_pipe.report.tables.documents.assessment import AccuracyGap, assess, trend_text


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        # e = 100 sqrt(0.25 / 100) = 5 at 50 and a little less around it: hypot(e1, e2) = 7.06 at 46.5 and 53.5
        (46.5, 53.5, "below one standard error"),
        (53.6, 46.4, "above one standard error"),  # 7.2 against 7.05
        (100.0, 100.0, "below one standard error"),  # no error and no difference
        (50.0, None, ""),
    ],
)
def test_one_gap(left: float | None, right: float | None, expected: str) -> None:
    assert assess({"vs 0.15": AccuracyGap(left, right, 100)}) == expected


def test_gaps_on_both_sides_are_named() -> None:
    gaps = {
        "a": AccuracyGap(50.0, 50.0, 100),
        "b": AccuracyGap(90.0, 50.0, 100),
        "c": AccuracyGap(50.0, 51.0, 100),
        "d": AccuracyGap(1.0, None, 100),
    }
    assert assess(gaps) == "a and c below one standard error; b above one standard error"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1.00", "2.00", "2.00"], "rises"),
        (["2.00", "", "1.00"], "falls"),
        (["1.00", "1.00"], "equal"),
        (["1.00", "3.00", "2.00", "1.00"], "rises, then falls"),
        (["1.00", ""], ""),
        ([], ""),
    ],
)
def test_trend(values: list[str], expected: str) -> None:
    assert trend_text(values) == expected
