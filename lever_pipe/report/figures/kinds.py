"""Accuracy by kind of question: where a policy loses against the pool oracle."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lever_pipe.report.figures import style
from lever_pipe.report.figures.accuracy import ACCURACY
from lever_pipe.report.tables.evidence import MEAN
from lever_pipe.report.tables.policies import label_of


def by_kind(breakdown: pd.DataFrame) -> Figure | None:
    """Return a panel for each way to sort questions: a row a kind, a mark a policy; None without rows.

    Args:
        breakdown: `breakdown.csv` with every cell as text; the rows of the mean over shots are drawn.
    """
    rows = breakdown[breakdown["shots"] == MEAN]
    ways = list(dict.fromkeys(rows["by"]))
    if not ways:
        return None
    kinds = max(rows[rows["by"] == way]["kind"].nunique() for way in ways)
    figure, axes = style.panels(1, len(ways), height=2.2 + 0.45 * kinds)
    for panel, way in zip(axes, ways, strict=True):
        _panel(panel, rows[rows["by"] == way])
        style.label(panel, title=f"By {way}, mean over shots", x=f"{ACCURACY}, bars: 95 % interval", y="")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=3)
    return figure


def _panel(axes: Axes, rows: pd.DataFrame) -> None:
    kinds = list(dict.fromkeys(rows["kind"]))
    groups = list(dict.fromkeys(rows["group"]))
    for index, group in enumerate(groups):
        found = rows[rows["group"] == group]
        shift = 0.11 * (index - (len(groups) - 1) / 2)
        _marks(axes, found, [kinds.index(kind) + shift for kind in found["kind"]], style.look(index), label_of(group))
    axes.set_yticks(range(len(kinds)), [_with_count(rows, kind) for kind in kinds])
    axes.invert_yaxis()


def _marks(axes: Axes, rows: pd.DataFrame, places: Sequence[float], seen: style.Look, name: str) -> None:
    value, low, high = (rows[column].astype(float) for column in ("accuracy", "low", "high"))
    bars = [list(value - low), list(high - value)]
    axes.errorbar(
        list(value), places, xerr=bars, color=seen.color, marker=seen.marker, linestyle="", elinewidth=0.9, label=name
    )


def _with_count(rows: pd.DataFrame, kind: str) -> str:
    return f"{kind} ({rows[rows['kind'] == kind]['n_questions'].iloc[0]})"
