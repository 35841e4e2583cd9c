"""One picture of the grid: every cell's distance from chance in its own setting, with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg

from lever_pipe.base.sums import sum_in_order
from lever_pipe.report.figures import style


class Mark(NamedTuple):
    """A cell in the picture: points above random selection in the same setting."""

    panel: str
    row: str
    series: str
    """Sampler."""
    value: float
    low: float
    high: float
    ceiling: float | None
    """Points of the oracle in the same setting."""


MARK_INCHES, GAP = 0.13, 0.5
"""Height of a mark in inches, and the gap between two rows in heights of a mark."""


def draw_map(marks: Sequence[Mark], folder: Path, name: str) -> None:
    """Write `name.svg` and `name.png` into `folder`.

    A panel is a data set with an LVLM, a row a policy, a colour and marker a sampler, all in the order of the marks.
    The vertical line is random selection from the same pools, a short grey stroke the oracle.

    Args:
        marks: at least one.
        folder: an existing folder.
        name: of both files.
    """
    series_styles = {
        name: style.series_style(index) for index, name in enumerate(dict.fromkeys(mark.series for mark in marks))
    }
    panels: dict[str, dict[str, list[Mark]]] = {}
    for mark in marks:
        panels.setdefault(mark.panel, {}).setdefault(mark.row, []).append(mark)
    heights = [0.6 + MARK_INCHES * sum(len(row) + GAP for row in rows.values()) for rows in panels.values()]
    with style.styled():
        figure = style.DrawnOnce(figsize=(style.INCHES, 0.4 + sum_in_order(heights)), layout="constrained")
        FigureCanvasAgg(figure)
        stacked = figure.subplots(len(panels), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
        for axes, (panel, rows) in zip(stacked, panels.items(), strict=True):
            _panel(axes, rows, series_styles)
            axes.set_title(panel)
            # A shared x axis would hide the tick labels of all but the last panel.
            axes.tick_params(labelbottom=True)
        stacked[-1].set_xlabel("points above random selection from the same pools (95 % interval)")
        legends = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in stacked]
        # Several panels have the same series, but the legend needs each only once.
        handles = {label: handle for legend in legends for handle, label in legend}
        names = [label for label in series_styles if label in handles]
        figure.legend([handles[label] for label in names], names, loc="outside upper center", ncols=min(4, len(names)))
        style.save(figure, folder, name, with_png=True)


def _panel(axes: Axes, rows: Mapping[str, Sequence[Mark]], series_styles: Mapping[str, style.SeriesStyle]) -> None:
    axes.axvline(0, color=style.INK, linewidth=1)
    ticks, top = list[float](), 0.0
    heights = dict[Mark, float]()
    for row in rows.values():
        heights |= {mark: top + i for i, mark in enumerate(row)}
        ticks.append(top + (len(row) - 1) / 2)
        top += len(row) + GAP
    for series, series_style in series_styles.items():
        marks = {height: mark for mark, height in heights.items() if mark.series == series}
        if marks:
            options: dict[str, Any] = {"markersize": 4, "linewidth": 1.2, "capsize": 0, "label": series}
            style.bars(axes, marks, series_style, is_forest=True, **options)
    ceilings = [(mark.ceiling, y) for mark, y in heights.items() if mark.ceiling is not None]
    if ceilings:
        axes.plot(*zip(*ceilings, strict=True), "|", color=style.GREY, markersize=6)
    axes.set_yticks(ticks, list(rows))
    axes.set_ylim(top - GAP - 0.2, -0.8)
