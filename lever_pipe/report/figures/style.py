"""Common style of all figures: sizes, colours that are distinct without colour vision, deterministic files."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from lever_pipe.report.evidence import EvidenceRow

INCHES = 7.6
DPI = 100  # 760 pixels wide: text is as large as the page's own, and still readable at half the width

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
"""Colours of Okabe and Ito, with the pale yellow at the end."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[str | tuple[int, tuple[int, ...]], ...] = (
    "-",
    "--",
    "-.",
    ":",
    (0, (5, 1, 1, 1, 1, 1)),
    (0, (3, 2)),
    (0, (8, 2)),
    (0, (1, 2)),
)
INK, GREY = "#000000", "#6E6E6E"

SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10.0,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E2E2E2",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
    # A fixed salt, because matplotlib otherwise makes random ids.
    "svg.hashsalt": "lever-pipe",
    "svg.fonttype": "none",
}


@dataclass(frozen=True, slots=True)
class SeriesStyle:
    """Colour, marker and dash of one series; each of the three alone distinguishes the series."""

    color: str
    marker: str
    dash: str | tuple[int, tuple[int, ...]]


def series_style(index: int) -> SeriesStyle:
    """Return the style of the series at `index`; it repeats after eight."""
    return SeriesStyle(PALETTE[index % 8], MARKERS[index % 8], DASHES[index % 8])


class DrawnOnce(Figure):
    """A figure that only computes its layout when it is drawn with a layout engine.

    Saving first draws for the layout, then removes the layout engine and draws again. The first drawing would be
    discarded.
    """

    def draw(self, renderer: Any) -> None:
        """Compute the layout if a layout engine is set, else draw."""
        layout = self.get_layout_engine()
        if isinstance(layout, ConstrainedLayoutEngine):
            layout.execute(self)
        else:
            super().draw(renderer)


@contextmanager
def styled() -> Iterator[None]:
    """Draw and save inside this block; restore the settings of the process afterwards."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        # SVG files contain text, not outlines: the reader's fonts, which include Chinese ones, draw it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        # The user's own matplotlibrc must not change figures.
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        yield


def panels(rows: int, columns: int, *, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure of 760 pixels width and its axes, row by row, without pyplot."""
    figure = DrawnOnce(figsize=(INCHES, height), dpi=DPI, layout="constrained")
    # pyplot would keep each figure in memory until it is closed.
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False)
    return figure, [axes for row in grid for axes in row]


def label(axes: Axes, *, title: str = "", x: str = "", y: str = "") -> None:
    """Set title and axis labels, units included."""
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def bars(
    axes: Axes,
    points: Mapping[float, Any],
    series_style: SeriesStyle,
    *,
    scale: float = 1.0,
    is_forest: bool = False,
    **more: Any,
) -> None:
    """Draw numbers by x, or in a forest by y, each with the bar from its `low` to its `high`, if these are known."""
    numbers = points.values()
    ends = [(n.value - n.low, n.high - n.value) if n.high >= n.low else (0.0, 0.0) for n in numbers]
    values: dict[str, Any] = {"x" if is_forest else "y": [scale * n.value for n in numbers]}
    values |= {"y" if is_forest else "x": list(points)}
    values |= {"xerr" if is_forest else "yerr": [[scale * pair[side] for pair in ends] for side in (0, 1)]}
    dash = "" if is_forest else series_style.dash
    look = {
        "color": series_style.color,
        "marker": series_style.marker,
        "linestyle": dash,
        "markersize": 5,
        "capsize": 2,
    }
    axes.errorbar(**values | look | more)


def line(axes: Axes, values: Mapping[Any, float], series_style: SeriesStyle, *, name: str, **more: Any) -> None:
    """Draw values by x as a line."""
    axes.plot(
        list(values), list(values.values()), color=series_style.color, linestyle=series_style.dash, label=name, **more
    )


def dots(axes: Axes, values: Mapping[Any, float], series_style: SeriesStyle, **more: Any) -> None:
    """Draw values by x as markers alone."""
    axes.plot(list(values), list(values.values()), series_style.marker, color=series_style.color, **more)


def forest(
    axes: Axes, rows: Sequence[tuple[str, EvidenceRow, SeriesStyle]], *, scale: float = 1.0, shift: float = 0.0
) -> None:
    """Draw rows below each other, each with its name at the axis and its interval as a bar."""
    for y, (_, row, series_style) in enumerate(rows):
        bars(axes, {y + shift: row}, series_style, scale=scale, is_forest=True)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)


def heat(axes: Axes, cells: pd.DataFrame, texts: pd.DataFrame, ends: tuple[float, float] = (0, 100)) -> None:
    """Draw a frame as shades between two ends, with texts in the cells and its names at the axes."""
    low, high = ends
    axes.grid(visible=False)
    axes.imshow(cells.to_numpy(dtype=float), cmap="Blues", vmin=low, vmax=high, aspect="auto")
    for (i, j), value in np.ndenumerate(cells.to_numpy(dtype=float)):
        color = "white" if value > low + 0.6 * (high - low) else INK
        axes.text(j, i, str(texts.iat[i, j]), ha="center", va="center", fontsize=8, color=color)
    axes.set_xticks(range(len(cells.columns)), cells.columns)
    axes.set_yticks(range(len(cells)), cells.index)


def zero_line(axes: Axes) -> None:
    """Draw a vertical line at difference 0."""
    axes.axvline(0.0, color=GREY, linewidth=0.9, zorder=1)


def legend_below(figure: Figure, *panels: Axes, columns: int = 3) -> None:
    """Write the legend of some panels below all of them, each name once."""
    handles = {name: handle for axes in panels for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    if handles:
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(columns, len(handles)))


def whole_ticks(axes: Axes, values: Sequence[int]) -> None:
    """Put the ticks of the x axis at exactly these whole numbers."""
    axes.set_xticks(list(values), [str(value) for value in values])


def epoch_ticks(axes: Axes, last: int) -> None:
    """Put few whole ticks from 1 to the last epoch."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100) if last <= 6 * step)
    whole_ticks(axes, sorted({1, *range(step, last + 1, step)}))


def smoothed(curve: Mapping[int, float], neighbours: int = 5) -> dict[int, float]:
    """Return the mean of each value's neighbours, fewer at the ends."""
    values, half = list(curve.values()), neighbours // 2
    parts = (values[max(0, i - half) : i + half + 1] for i in range(len(values)))
    return {step: math.fsum(part) / len(part) for step, part in zip(curve, parts, strict=True)}


def save(figure: Figure, folder: Path, name: str, *, with_png: bool) -> None:
    """Write `name.svg` and, on request, `name.png`.

    The files contain no dates or versions, so that equal figures are equal files.
    """
    figure.savefig(folder / f"{name}.svg", format="svg", metadata={"Date": None, "Creator": None})
    if with_png:
        figure.savefig(folder / f"{name}.png", format="png", metadata={"Software": None})
