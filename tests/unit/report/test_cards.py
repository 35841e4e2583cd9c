"""A summary's plot: dots at their values, on a scale that covers all of them, with their rows."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from lever_pipe.report.catalogue import Translator
from lever_pipe.report.cells import Estimate, message
from lever_pipe.report.figures import cards
from lever_pipe.report.page import drawings
from lever_pipe.report.summaries import MarkKind, Summary, SummaryRow


def number(value: float, half: float = 1.0) -> Estimate:
    return Estimate(value, 2, "row", low=value - half, high=value + half, line=7)


def summary(*rows: tuple[str, list[tuple[MarkKind, Estimate]]], has_keys: bool = False) -> Summary:
    plotted = tuple(SummaryRow(label, tuple(marks)) for label, marks in rows)
    keys = (("a", message("offline")), ("b", message("on-policy"))) if has_keys else ()
    return Summary("x", message("Which?"), {}, plotted, message("points"), (), keys)  # type: ignore[arg-type]


def inline(folder: Path, summary: Summary) -> str:
    cards.draw_cards([summary], Translator("en"), folder)
    svg = (folder / "card-x.svg").read_text(encoding="utf-8")
    return str(drawings.inline(svg, source="card-x.svg", name="x", title="Which?", is_card=True))


@pytest.mark.parametrize(
    ("ends", "low", "high"),
    [((-3.7, 1.4), -4, 2), ((41.1, 89.4), 40, 90), ((0.02, 0.93), 0, 1), ((5, 5), 5, 10), ((0, 0), 0, 1)],
)
def test_an_axis_holds_everything_between_round_ticks(ends: tuple[float, float], low: float, high: float) -> None:
    axes = Figure().subplots()
    axes.plot(ends, (0, 1))
    cards.set_scale(axes)
    ticks = axes.get_xticks()
    assert axes.get_xlim() == pytest.approx((low, high)) == (ticks[0], ticks[-1])
    assert 2 <= len(ticks) <= 8
    steps = {round(b - a, 9) for a, b in pairwise(ticks)}
    assert len(steps) == 1
    assert f"{steps.pop():.0e}"[0] in "125"


def test_a_dot_stands_at_its_value_and_names_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks, own = list[tuple[float, float]](), cards.style.bars

    def bars(axes: Any, points: dict[float, Estimate], *args: Any, **more: Any) -> None:
        marks.extend((number.value, y) for y, number in points.items())
        own(axes, points, *args, **more)

    monkeypatch.setattr(cards.style, "bars", bars)
    rows = summary(("0.12", [("a", number(-1.0)), ("b", number(2.0))]), ("0.15", [("b", number(3.0))]), has_keys=True)
    svg = inline(tmp_path, rows)
    assert [value for value, _ in marks] == [-1.0, 2.0, 3.0]
    assert marks[0][1] < 0 < marks[1][1] < marks[2][1] == 1  # those of a row stand above each other
    texts = dict.fromkeys(re.findall(r'data-e="7"><title>([^<]*)', svg))
    assert list(texts) == ["0.12: -1.00 [-2.0, 0.0]", "0.12: 2.00 [1.0, 3.0]", "0.15: 3.00 [2.0, 4.0]"]
    assert {"offline", "on-policy", "points", "0.12"} <= set(re.findall(r">([^<>]+)</text>", svg))


def test_a_label_is_no_markup_and_no_rows_are_no_plot(tmp_path: Path) -> None:
    svg = inline(tmp_path, summary(("<b>", [("muted", number(1.0))])))
    assert "&lt;b&gt;" in svg
    assert "<b>" not in svg
    cards.draw_cards([replace(summary(), id="y")], Translator("en"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["card-x.svg"]
