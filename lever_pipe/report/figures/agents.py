"""Study `intention` drawn: validation by step, training by step, the arms' primary endpoint, the published curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from lever_pipe.report.figures import style
from lever_pipe.report.tables.evidence import Interval
from lever_pipe.statistics.crossed import mean_accuracy

MODES = {"sampled": "Sampled, several episodes a task", "greedy": "Greedy, one episode a task"}
TRAINING = {
    "pg_loss": "PG loss",
    "kl": "KL to the start (k3)",
    "entropy": "Entropy (nats)",
    "grad_norm": "Gradient norm before clipping",
    "turns": "Turns an episode",
    "learning_rate": "Learning rate",
}
"""Training metrics that are drawn, and their titles."""
EXACT = ("learning_rate",)
"""Of them those without noise, which are not smoothed."""
UNITS = {"normalised_reward": ("% of the ceiling", 100.0), "reward": ("Reward", 1.0)}
"""Metrics of the primary endpoint: what they count in, and how many of it one is."""
PUBLISHED = {"nokl": "no KL", "kl": "KL bundle"}
REWARD, STEP = "Validation reward", "Step"
_NEIGHBOURS = 5
"""Steps over which training metrics are averaged for the eye."""


def validation(episodes: pd.DataFrame, arms: Sequence[str]) -> Figure | None:
    """Return validation reward by step, a panel a mode on one scale, a line an arm with its 95 % band.

    Args:
        episodes: rows of `episodes.csv`.
        arms: those drawn, in order.
    """
    rows = episodes[episodes["split"] == "val"]
    if rows.empty:
        return None
    figure, axes = style.panels(1, len(MODES), height=4.8)
    for panel, (mode, title) in zip(axes, MODES.items(), strict=True):
        for index, arm in enumerate(arms):
            of_arm = rows[(rows["mode"] == mode) & (rows["arm"] == arm)]
            if len(of_arm):
                style.with_band(panel, curve_with_band(of_arm), style.look(index), name=arm, alpha=0.07)
        style.label(panel, title=title, x=STEP, y=REWARD)
    _same_scale(axes)
    axes[0].legend()
    return figure


def curve_with_band(episodes: pd.DataFrame) -> dict[float, Interval]:
    """Return the mean reward by step with a 95 % interval over tasks and, with several seeds, over seeds.

    It ends at the mean ceiling of the tasks, and at 0 unless an episode fell below.
    """
    by_task = episodes.pivot_table(index=["seed", "task_id"], columns="step", values="reward", aggfunc="mean")
    seeds = by_task.index.get_level_values("seed").nunique()
    found = mean_accuracy(by_task.to_numpy(dtype=np.float64).reshape(seeds, -1, by_task.shape[1]))
    half = stats.t.ppf(0.975, found.df) * found.error
    least, most = min(0.0, episodes["reward"].min()), episodes.groupby("task_id")["ceiling"].mean().mean()
    ends = np.maximum(found.value - half, least), np.minimum(found.value + half, np.maximum(most, found.value))
    rows = zip(by_task.columns, found.value, *ends, strict=True)
    return {float(step): Interval(float(v), float(low), float(high), seeds) for step, v, low, high in rows}


def training(curves: pd.DataFrame, arms: Sequence[str]) -> Figure | None:
    """Return training metrics by step, a panel a metric, a line an arm: the mean over seeds, smoothed over 5 steps."""
    rows = curves[curves["split"] == "train"]
    if rows.empty:
        return None
    figure, axes = style.panels(2, 3, height=6.4)
    for panel, (metric, title) in zip(axes, TRAINING.items(), strict=True):
        for index, arm in enumerate(arms):
            values = rows[(rows["metric"] == metric) & (rows["arm"] == arm)].groupby("step")["value"].mean()
            if metric not in EXACT:
                values = values.rolling(_NEIGHBOURS, center=True, min_periods=1).mean()
            seen = style.look(index)
            panel.plot(values.index, values, color=seen.color, linestyle=seen.dash, linewidth=1.4, label=arm)
        style.label(panel, title=title, x=STEP, y="")
    axes[0].legend(fontsize=8)
    return figure


def endpoint(
    intervals: Mapping[str, Interval], differences: Mapping[str, Interval], *, reference: str, metric: str
) -> Figure | None:
    """Return each arm's primary endpoint, and its difference to the reference arm, with 95 % intervals."""
    if not intervals:
        return None
    figure, (left, right) = style.panels(1, 2, height=3.2)
    unit, scale = UNITS[metric]
    _forest(left, intervals, scale)
    style.label(left, title="Primary endpoint, bars: 95 % interval", x=unit, y="")
    right.axvline(0.0, color=style.GREY, linewidth=0.9)
    _forest(right, differences, scale)
    style.label(right, title=f"Difference to {reference}", x=unit, y="")
    return figure


def published(reference: pd.DataFrame) -> Figure | None:
    """Return the published validation rewards; estimates are hollow and belong to no line.

    Args:
        reference: rows of the reference of documents 003 and 004, every column as text.
    """
    measured = reference[reference["metric"] == "val_reward"].drop_duplicates(["run", "step"])
    if measured.empty:
        return None
    figure, (axes,) = style.panels(1, 1, height=3.8)
    for index, (run, name) in enumerate(PUBLISHED.items()):
        rows, seen = measured[measured["run"] == run], style.look(index)
        places, values = rows["step"].astype(int), rows["value"].astype(float)
        order = np.argsort(places.to_numpy(), kind="stable")
        places, values = places.iloc[order], values.iloc[order]
        axes.plot(places, values, color=seen.color, marker=seen.marker, linestyle=seen.dash, label=name)
    guessed = reference[reference["metric"] == "val_reward_estimated"]
    if len(guessed):
        places, values = guessed["step"].astype(int), guessed["value"].astype(float)
        name = "no KL, estimated by document 003"
        axes.plot(places, values, "o", markerfacecolor="none", color=style.GREY, label=name)
    style.label(axes, title="Published: greedy, 40 tasks, one run each", x=STEP, y=REWARD)
    axes.legend()
    return figure


def _forest(axes: Axes, found: Mapping[str, Interval], scale: float) -> None:
    for row, point in enumerate(found.values()):
        bars = [[scale * (point.value - point.low)], [scale * (point.high - point.value)]]
        axes.errorbar([scale * point.value], [row], xerr=bars, color=style.PALETTE[0], marker="o", capsize=3)
    axes.set_yticks(range(len(found)), list(found))
    axes.invert_yaxis()


def _same_scale(axes: Sequence[Axes]) -> None:
    limits = [panel.get_ylim() for panel in axes]
    for panel in axes:
        panel.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
