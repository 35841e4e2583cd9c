"""A summary's plot: dots at their values, on a scale that covers all of them, with their rows."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

import pytest

from lever_pipe.report.catalogue import Translator
from lever_pipe.report.cells import Estimate, message
from lever_pipe.report.page import dots
from lever_pipe.report.summaries import MarkKind, Summary, SummaryRow

TRANSLATOR = Translator("en", {"title": "Which?", "axis": "points", "a": "offline", "b": "on-policy"})


def number(value: float, half: float = 1.0) -> Estimate:
    return Estimate(value, 2, "row", low=value - half, high=value + half, line=7)


def summary(*rows: tuple[str, list[tuple[MarkKind, Estimate]]], has_keys: bool = False) -> Summary:
    plotted = tuple(SummaryRow(label, tuple(marks)) for label, marks in rows)
    keys = (("a", message("a")), ("b", message("b"))) if has_keys else ()
    return Summary("x", message("title"), {}, plotted, message("axis"), (), keys)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ends", "low", "high"),
    [((-3.7, 1.4), -4, 2), ((41.1, 89.4), 40, 90), ((0.02, 0.93), 0, 1), ((5, 5), 5, 6), ((0, 0), 0, 0.2)],
)
def test_an_axis_holds_everything_between_round_ticks(ends: tuple[float, float], low: float, high: float) -> None:
    axis = dots.axis_of([number(end, 0.0) for end in ends], left=50)
    assert (axis.low, axis.high) == (pytest.approx(low), pytest.approx(high))
    assert 2 <= len(axis.ticks) <= 8
    steps = {round(b - a, 9) for a, b in pairwise(axis.ticks)}
    assert len(steps) == 1
    assert f"{steps.pop():.0e}"[0] in "125"
    assert axis.at(axis.low) == 50


def test_a_dot_stands_at_its_value_and_names_its_row() -> None:
    root = ElementTree.fromstring(
        dots.plot(summary(("0.12", [("a", number(-1.0)), ("b", number(2.0))]), has_keys=True), TRANSLATOR)
    )
    traced = [group for group in root.iter("g") if group.get("data-e")]
    assert [group.get("data-e") for group in traced] == ["7", "7"]
    assert [group[0].text for group in traced] == ["0.12: -1.00 [-2.0, 0.0]", "0.12: 2.00 [1.0, 3.0]"]
    x = [float(traced[0][2].get("cx", 0)), float(traced[1][2].get("x", 0)) + 4]
    line = traced[0][1]
    assert x[0] == pytest.approx((float(line.get("x1", 0)) + float(line.get("x2", 0))) / 2, abs=0.1)
    assert x[0] < x[1]
    assert {"offline", "on-policy", "points"} <= {text.text for text in root.iter("text")}


def test_a_label_is_no_markup_and_no_rows_are_no_plot() -> None:
    assert "&lt;b&gt;" in dots.plot(summary(("<b>", [("muted", number(1.0))])), TRANSLATOR)
    assert dots.plot(summary(), TRANSLATOR) == ""
