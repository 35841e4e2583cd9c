"""The plot of a summary's card: a row per label, a dot with an interval per mark, an axis with round ticks."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lever_pipe.base.sums import sum_in_order
from lever_pipe.report.catalogue import Translator
from lever_pipe.report.figures import style
from lever_pipe.report.summaries import MarkKind, Summary

WIDTH, HEIGHT = 3.72, 2.12
"""Inches; a page shows about a hundred pixels an inch, so that text keeps its size."""
KEYS = 0.2
"""Inches below the axis for the legend."""
MOST_LABEL = 1.5
SPREAD = 4.5
"""Pixels: half the distance between two marks of a row."""
SIZE, SMALL = 9.4, 8.7
"""Points of the labels, and of axis and legend."""
STYLES: Mapping[MarkKind, style.SeriesStyle] = {
    "a": style.series_style(0),
    "b": style.series_style(1),
    "muted": style.SeriesStyle(style.GREY, "o", ""),
}


def draw_cards(summaries: Iterable[Summary], translator: Translator, folder: Path) -> None:
    """Write the plot of every summary with rows into a folder, as `card-ID.svg`."""
    with style.styled():
        for summary in summaries:
            if summary.rows:
                style.save(_card(summary, translator), folder, f"card-{summary.id}", with_png=False)


def _card(summary: Summary, translator: Translator) -> Figure:
    has_keys = len(summary.keys) > 1
    height = HEIGHT + KEYS * has_keys
    labels = [translator.text(row.label) for row in summary.rows]
    figure = Figure(figsize=(WIDTH, height), frameon=False)
    left, bottom = 0.14 + min(MOST_LABEL, max(map(_inches, labels))), 0.42 + KEYS * has_keys
    axes = figure.add_axes((left / WIDTH, bottom / height, 1 - (left + 0.14) / WIDTH, 1 - (bottom + 0.02) / height))
    axes.set_frame_on(False)
    options: dict[str, Any] = {"is_forest": True, "capsize": 0, "clip_on": False}
    spread = SPREAD * len(labels) / axes.bbox.height
    for y, (row, label) in enumerate(zip(summary.rows, labels, strict=True)):
        for index, (kind, number) in enumerate(row.marks):
            tooltip = f"e{number.line} {label}: {translator.text(number)}"
            height_of = y + spread * (2 * index - len(row.marks) + 1)
            style.bars(axes, {height_of: number}, STYLES[kind], **options, gid=tooltip)
    axes.grid(visible=False, axis="y")
    axes.tick_params(length=0, labelsize=SMALL, labelcolor=style.GREY)
    axes.set_yticks(range(len(labels)), labels, fontsize=SIZE, color=style.INK)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    set_scale(axes)
    if summary.axis is not None:
        axis = translator.text(summary.axis)
        # A long title must not leave the drawing.
        middle = min((left + WIDTH - 0.14) / 2, WIDTH - 0.1 - _inches(axis) * 0.46)
        figure.text(middle / WIDTH, (bottom - 0.36) / height, axis, ha="center", fontsize=SMALL, color=style.GREY)
    if has_keys:
        handles = [axes.plot([], [], STYLES[kind].marker, color=STYLES[kind].color)[0] for kind, _ in summary.keys]
        texts = [translator.text(of_kind) for _, of_kind in summary.keys]
        layout: dict[str, Any] = {"loc": "lower center", "ncols": len(texts), "borderpad": 0, "handletextpad": 0}
        figure.legend(handles, texts, **layout, fontsize=SMALL, labelcolor=style.GREY)
    return figure


def set_scale(axes: Axes) -> None:
    """Extend the x axis to round ticks around every mark, and to 0 if this is near."""
    low, high = axes.dataLim.intervalx
    if low <= 0 <= high or min(abs(low), abs(high)) < 0.5 * (high - low):
        low, high = min(low, 0.0), max(high, 0.0)
    high = high if high > low else low + (abs(low) or 1.0)
    ticks = MaxNLocator(nbins=5, steps=[1, 2, 5, 10]).tick_values(low, high)
    ticks = [tick for tick, after in zip(ticks, [*ticks[1:], math.inf], strict=True) if after > low + 1e-9]
    axes.set_xticks(ticks, [f"{tick:g}".replace("-", "−") for tick in ticks])
    axes.set_xlim(ticks[0], ticks[-1])
    if ticks[0] < 0:
        style.zero_line(axes)


def _inches(text: str) -> float:
    """Return the width of a label; the fonts of the figure lack CJK characters, which are full-width."""
    return sum_in_order(0.13 if unicodedata.east_asian_width(each) in "WF" else 0.074 for each in text)
