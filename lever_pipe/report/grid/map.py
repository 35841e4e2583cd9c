"""One picture of the grid: every cell's distance from chance in its own corner, with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lever_pipe.report.figures import style


class Mark(NamedTuple):
    """A cell in the picture: points above random selection in the same corner."""

    panel: str
    row: str
    series: str
    """Sampler."""
    value: float
    low: float
    high: float
    ceiling: float | None
    """Of the oracle in the same corner."""


def draw_map(marks: Sequence[Mark], folder: Path, name: str) -> None:
    """Write `name.svg` and `name.png` into `folder`.

    A panel a data set and LVLM, a row a policy, a colour and marker a sampler. The vertical line is random selection
    from the same pools, a short grey stroke the oracle.
    """
    series = list(dict.fromkeys(mark.series for mark in marks))
    looks = {name: style.look(index) for index, name in enumerate(series)}
    panels = {panel: [mark for mark in marks if mark.panel == panel] for panel in dict.fromkeys(m.panel for m in marks)}
    heights = [0.9 + len({mark.row for mark in of}) * (0.12 * len(series) + 0.14) for of in panels.values()]
    with style.styled():
        figure = Figure(figsize=(style.INCHES, 0.4 + sum(heights)), layout="constrained")
        FigureCanvasAgg(figure)
        stacked = figure.subplots(len(panels), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
        for axes, (panel, own) in zip(stacked, panels.items(), strict=True):
            _panel(axes, own, list(dict.fromkeys(mark.row for mark in own)), looks)
            axes.set_title(panel)
        stacked[-1].set_xlabel("points above random selection from the same pools (95 % interval)")
        found = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in stacked]
        handles = {label: handle for of in found for handle, label in of}
        figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=min(4, len(handles)))
        style.save(figure, folder, name, with_png=True)


def _panel(axes: Axes, marks: Sequence[Mark], rows: Sequence[str], looks: Mapping[str, style.Look]) -> None:
    names, step = list(looks), 0.8 / max(1, len(looks))
    axes.axvline(0, color=style.INK, linewidth=1)
    for series, look in looks.items():
        own = [mark for mark in marks if mark.series == series]
        at = [rows.index(mark.row) + (names.index(series) - (len(names) - 1) / 2) * step for mark in own]
        spread = [[mark.value - mark.low for mark in own], [mark.high - mark.value for mark in own]]
        axes.errorbar(
            [mark.value for mark in own],
            at,
            xerr=spread,
            fmt=look.marker,
            color=look.color,
            markersize=4,
            linewidth=1.2,
            label=series,
        )
        ceilings = [(mark.ceiling, y) for mark, y in zip(own, at, strict=True) if mark.ceiling is not None]
        axes.plot(*zip(*ceilings, strict=True), "|", color=style.GREY, markersize=6) if ceilings else None
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.4, -0.6)
