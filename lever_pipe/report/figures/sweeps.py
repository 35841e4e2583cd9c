"""Figures of sweeps: a heat map for two keys, else a point with its interval for each cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lever_pipe.base.sums import sum_in_order
from lever_pipe.report.catalogue import Translator
from lever_pipe.report.context import ReportContext
from lever_pipe.report.evidence import ALPHA
from lever_pipe.report.figures import style
from lever_pipe.report.format import number_text
from lever_pipe.report.sweeps import SweepView, text_of, views_of

AXES = {
    "accuracy": "VQA accuracy (%)",
    "reward": "Reward",
    "share_of_ceiling": "Held-out reward (% of the ceiling)",
}


def cells(study: str, context: ReportContext, translator: Translator) -> Figure | None:
    """Return the primary endpoint of the cells of a study's sweeps: a row per sweep, a panel per decoding."""
    views = [view for view in views_of(context) if view.study == study]
    if not views:
        return None
    modes = views[0].modes
    figure, axes = style.panels(
        len(views), len(modes), height=sum_in_order(1.4 + 0.3 * len(view.sweep.cells) for view in views)
    )
    axis = "accuracy" if study == "selector" else "share_of_ceiling" if views[0].scale > 1 else "reward"
    for panel, (view, mode) in zip(axes, product(views, modes), strict=True):
        if len(view.sweep.over) == 2 and view.sweep.how == "grid":
            _heat(panel, view, mode)
        else:
            arms = {", ".join(map(text_of, cell.values.values())): cell.arm for cell in view.sweep.cells}
            rows = [
                (name, view.scores[mode, arm], style.series_style(arm != view.sweep.arm)) for name, arm in arms.items()
            ]
            style.forest(panel, rows, scale=view.scale)
            style.label(panel, x=translator.message(AXES[axis]), y=", ".join(view.sweep.over))
        panel.set_title(view.sweep.name + (f", {translator.message(mode.capitalize())}" if mode else ""))
    return figure


def _heat(axes: Axes, view: SweepView, mode: str) -> None:
    """Draw the cells by both keys; an asterisk marks separation from the swept arm, a frame the swept arm."""
    down, across = map(_in_order, zip(*(cell.values.values() for cell in view.sweep.cells), strict=True))
    values, texts = (pd.DataFrame(empty, down, across) for empty in (math.nan, ""))
    for cell in view.sweep.cells:
        place = tuple(map(text_of, cell.values.values()))
        score, gap = view.scale * view.scores[mode, cell.arm].value, view.gaps.get((mode, cell.arm))
        values.loc[place] = score
        texts.loc[place] = number_text(score, view.digits) + "*" * (gap is not None and gap.p_holm < ALPHA)
        if cell.arm == view.sweep.arm:
            corner = across.index(place[1]) - 0.5, down.index(place[0]) - 0.5
            axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=style.PALETTE[1], linewidth=2))
    style.heat(axes, values, texts, (np.nanmin(values), np.nanmax(values)))
    axes.set(**dict(zip(("ylabel", "xlabel"), view.sweep.over, strict=True)))


def _in_order(values: Sequence[Any]) -> list[str]:
    """Return the texts of distinct values: numbers in ascending order, others in their given order."""
    ordered = sorted(values) if all(isinstance(value, int | float) for value in values) else values
    return list(dict.fromkeys(map(text_of, ordered)))
