"""One look for all figures: sizes, colours that stay apart without colour vision, deterministic files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lever_pipe.report.tables.evidence import Interval

INCHES = 10.0
DPI = 100  # 1000 pixels wide

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
"""Okabe and Ito, without the pale yellow among the first seven."""
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
GREY = "#6E6E6E"

SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10.0,
    "axes.titlesize": 11.0,
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
    "svg.hashsalt": "lever-pipe",
    "svg.fonttype": "none",
}


@dataclass(frozen=True, slots=True)
class Look:
    """Colour, marker and dash of one series; all three differ, so that any one suffices to tell series apart."""

    color: str
    marker: str
    dash: str | tuple[int, tuple[int, ...]]


def look(index: int) -> Look:
    """Return the look of the series at `index`; it repeats after eight."""
    return Look(PALETTE[index % 8], MARKERS[index % 8], DASHES[index % 8])


@contextmanager
def styled() -> Iterator[None]:
    """Draw and save inside this block; the settings of the process come back after it."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        yield


def panels(rows: int, columns: int, *, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure of 1000 pixels width and its axes, row by row, without pyplot."""
    figure = Figure(figsize=(INCHES, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False)
    return figure, [axes for row in grid for axes in row]


def label(axes: Axes, *, title: str, x: str, y: str) -> None:
    """Set title and axis labels, units included."""
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def with_bars(axes: Axes, points: Mapping[float, Interval], seen: Look, *, name: str) -> None:
    """Draw values by x with their intervals as bars; a look without a marker draws the line alone."""
    values = [point.value for point in points.values()]
    below = [point.value - point.low for point in points.values()]
    above = [point.high - point.value for point in points.values()]
    axes.errorbar(
        list(points),
        values,
        yerr=[below, above] if seen.marker else None,
        color=seen.color,
        marker=seen.marker,
        linestyle=seen.dash,
        linewidth=1.4,
        elinewidth=0.9,
        markersize=5,
        capsize=2,
        label=name,
    )


def with_band(axes: Axes, points: Mapping[float, Interval], seen: Look, *, name: str, alpha: float = 0.12) -> None:
    """Draw values by x as a line with a band from the lower to the upper ends of their intervals."""
    places = list(points)
    values = [point.value for point in points.values()]
    axes.plot(places, values, color=seen.color, marker=seen.marker, linestyle=seen.dash, label=name)
    low, high = [point.low for point in points.values()], [point.high for point in points.values()]
    axes.fill_between(places, low, high, color=seen.color, alpha=alpha, linewidth=0)


def whole_ticks(axes: Axes, values: Sequence[int]) -> None:
    """Put the ticks of the x axis at exactly these whole numbers."""
    axes.set_xticks(list(values), [str(value) for value in values])


def save(figure: Figure, folder: Path, name: str, *, footer: str) -> None:
    """Write `name.svg` and `name.png` with a small grey line at the foot.

    They hold no dates or versions, so that equal figures are equal files.
    """
    figure.supxlabel(footer.replace("`", ""), x=0.005, ha="left", fontsize=8.0, color=GREY)
    figure.savefig(folder / f"{name}.svg", format="svg", metadata={"Date": None, "Creator": None})
    figure.savefig(folder / f"{name}.png", format="png", metadata={"Software": None})
