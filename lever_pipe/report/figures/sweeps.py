"""Figures of sweeps: a heat map where two keys vary, points with intervals along one, else every cell below another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lever_pipe.report.catalogue import Voice, number_text
from lever_pipe.report.evidence import ALPHA, EvidenceRow
from lever_pipe.report.figures import style
from lever_pipe.report.material import Material
from lever_pipe.report.sweeps import SweepView, text_of, views_of


def cells(study: str, material: Material, voice: Voice) -> Figure | None:
    """Return the primary endpoint of the cells of every sweep of a study, a row a sweep, a panel a decoding."""
    views = [view for view in views_of(material) if view.study == study]
    if not views:
        return None
    modes = list(views[0].scores)
    heights = [1.2 + 0.3 * max(6, len(view.sweep.cells)) for view in views]
    figure, axes = style.panels(len(views), len(modes), height=sum(heights))
    axis = "accuracy" if study == "selector" else "share_of_ceiling" if views[0].scale > 1 else "reward"
    for panel, (view, mode) in zip(axes, product(views, modes), strict=True):
        _draw(panel, view, mode, voice.say(f"axis.{axis}"))
        panel.set_title(view.sweep.name + (f", {voice.say(f'word.{mode}')}" if mode else ""))
    return figure


def _draw(axes: Axes, view: SweepView, mode: str, score: str) -> None:
    rows = {arm: _scaled(row, view.scale) for arm, row in view.scores[mode].items()}
    values = {cell.arm: cell.values for cell in view.sweep.cells if cell.arm in rows}
    axis = _varying(list(values.values()))
    inner = _varying([of for arm, of in values.items() if arm != view.sweep.arm])  # an arm beside the grid is no row
    if len(axis) == len(inner) == 2 and view.sweep.how == "grid":
        _heat(axes, view, mode, rows, inner)
    elif len(axis) == 1 and all(map(_is_number, *axis.values())):
        (key,) = axis
        points = {float(values[arm][key]): row for arm, row in rows.items()}
        style.with_bars(axes, dict(sorted(points.items())), style.look(0), name="")
        style.label(axes, x=key, y=score)
    else:
        named = [", ".join(f"{key} {text_of(values[arm][key])}" for key in axis) for arm in rows]
        marks = zip(named, rows.values(), strict=True)
        style.forest(axes, [(name, row, style.look(i > 0)) for i, (name, row) in enumerate(marks)])
        style.label(axes, x=score)


def _varying(values: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the distinct values of each key that has several."""
    keys = list(values[0]) if values else []
    found = {key: list({text_of(of[key]): of[key] for of in values}.values()) for key in keys}
    return {key: of for key, of in found.items() if len(of) > 1}


def _heat(
    axes: Axes, view: SweepView, mode: str, rows: Mapping[str, EvidenceRow], keys: Mapping[str, Sequence[Any]]
) -> None:
    """Draw the cells by both keys; a cell that is separated from the swept arm has an asterisk, that arm a frame."""
    at = {tuple(text_of(cell.values[key]) for key in keys): cell.arm for cell in view.sweep.cells}
    (y, down), (x, across) = ((key, list(map(text_of, values))) for key, values in keys.items())
    named = [[at.get((i, j), "") for j in across] for i in down]
    shades = [[rows[arm].value if arm in rows else math.nan for arm in row] for row in named]
    apart = {arm for arm, row in view.gaps[mode].items() if row.p_holm < ALPHA}
    texts = [
        [number_text(rows[arm].value, view.digits) + "*" * (arm in apart) if arm in rows else "" for arm in row]
        for row in named
    ]
    style.heat(axes, shades, texts, (min(row.value for row in rows.values()), max(row.value for row in rows.values())))
    axes.set_xticks(range(len(across)), across)
    axes.set_yticks(range(len(down)), down)
    style.label(axes, x=x, y=y)
    for i, row in enumerate(named):
        for j in (j for j, arm in enumerate(row) if arm == view.sweep.arm):
            axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, edgecolor=style.PALETTE[1], linewidth=2))


def _scaled(row: EvidenceRow, scale: float) -> EvidenceRow:
    return row._replace(value=scale * row.value, low=scale * row.low, high=scale * row.high)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
