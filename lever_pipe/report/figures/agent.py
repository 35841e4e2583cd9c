"""Figures of study `intention`: validation by step, reward against KL and entropy, training, published curves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from lever_pipe.report.agent.answer import MODES
from lever_pipe.report.agent.runs import RUN_NAMES, RUNS, AgentView, run_of, values_of
from lever_pipe.report.catalogue import Translator
from lever_pipe.report.evidence import EvidenceRow
from lever_pipe.report.figures import style

TRAINING = ("reward", "kl", "entropy", "grad_norm", "pg_loss", "learning_rate")
EXACT = ("learning_rate",)
"""Training metrics without noise; they are not smoothed."""
HELD_OUT = {"subset": "test", "at": "last"}
AXES = {
    "reward": "Reward",
    "kl_end": "KL at the end (nats a token)",
    "entropy_end": "Entropy at the end (nats a token)",
}
METRIC_NAMES = {
    "reward": "Training reward",
    "kl": "KL",
    "entropy": "Entropy",
    "grad_norm": "Gradient norm",
    "pg_loss": "Policy-gradient loss",
    "learning_rate": "Learning rate",
}


def validation(view: AgentView, translator: Translator) -> Figure | None:
    """Return validation reward by step: a panel per decoding, a line per arm, a dot per seed."""
    curves = {(arm, mode): view.curve(f"arm~{arm}", mode) for arm in view.seeds for mode in MODES}
    if not any(curves.values()):
        return None
    figure, axes = style.panels(1, len(MODES), height=4.2)
    for panel, mode in zip(axes, MODES, strict=True):
        for index, (arm, seeds) in enumerate(view.seeds.items()):
            series_style = style.series_style(index)
            style.line(panel, values_of(curves[arm, mode]), series_style, name=arm, linewidth=1.5)
            for seed in seeds if len(seeds) > 1 else ():
                style.dots(
                    panel, values_of(view.curve(run_of(arm, seed), mode)), series_style, markersize=3, alpha=0.55
                )
        style.label(panel, title=translator.message(mode.capitalize()), x=translator.message("Step"))
    # Equal limits, so that the decodings compare at a glance.
    limits = [panel.get_ylim() for panel in axes]
    for panel in axes:
        panel.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    axes[0].set_ylabel(translator.message("Validation reward"))
    style.legend_below(figure, axes[0])
    return figure


def reward_against_kl(view: AgentView, translator: Translator) -> Figure | None:
    """Return the held-out score of each arm against its KL and its entropy at the end, by decoding."""
    arms = [arm for arm in view.seeds if view.find(f"arm~{arm}", "kl_end")]
    if not arms:
        return None
    figure, axes = style.panels(1, 2, height=4.0)
    for panel, metric in zip(axes, ("kl_end", "entropy_end"), strict=True):
        for index, arm in enumerate(arms):
            end = view.find(f"arm~{arm}", metric)
            rows = {mode: view.find(f"arm~{arm}", "normalised_reward", **HELD_OUT, mode=mode) for mode in MODES}
            if end is not None:
                _pair(panel, end.value, rows, style.series_style(index), arm)
        style.label(panel, x=translator.message(AXES[metric]))
    axes[0].set_xscale("log")
    # Plain numbers instead of powers of ten.
    axes[0].xaxis.set_major_formatter(ScalarFormatter())
    axes[0].xaxis.set_minor_formatter(ScalarFormatter())
    axes[0].tick_params(axis="x", which="both", labelsize=8.5, labelrotation=45)
    axes[0].set_ylabel(translator.message("Held-out reward (% of the ceiling)"))
    style.legend_below(figure, axes[0])
    return figure


def arms(view: AgentView, translator: Translator) -> Figure | None:
    """Return every arm's difference to the reference arm on held-out tasks, in both decodings."""
    names = [arm for arm in view.seeds if arm != view.reference]
    if not names:
        return None
    figure, (axes,) = style.panels(1, 1, height=1.3 + 0.4 * len(names))
    style.zero_line(axes)
    is_plotted = False
    for index, mode in enumerate(MODES):
        location = {"against": f"arm~{view.reference}", **HELD_OUT, "mode": mode}
        rows = [view.evidence.where(f"arm~{arm}", "normalised_reward", **location) for arm in names]
        if all(rows):
            marks = [(arm, row[0], style.series_style(index)) for arm, row in zip(names, rows, strict=True)]
            style.forest(axes, marks, scale=100.0, shift=0.24 * (index - 0.5))
            style.dots(axes, {}, style.series_style(index), label=translator.message(mode.capitalize()))
            is_plotted = True
    style.label(axes, x=translator.message("Held-out points of the ceiling against {arm}", arm=view.reference))
    style.legend_below(figure, axes)
    return figure if is_plotted else None


def training(view: AgentView, translator: Translator) -> Figure | None:
    """Return training metrics by step: a panel per metric, a line per arm (mean over seeds, smoothed over 5 steps)."""
    curves = [[view.training(f"arm~{arm}", metric) for arm in view.seeds] for metric in TRAINING]
    if not any(map(any, curves)):
        return None
    figure, axes = style.panels(2, 3, height=5.2)
    for panel, metric, by_arm in zip(axes, TRAINING, curves, strict=True):
        for index, (arm, curve) in enumerate(zip(view.seeds, by_arm, strict=True)):
            values = values_of(curve)
            points = values if metric in EXACT else style.smoothed(values)
            style.line(panel, points, style.series_style(index), name=arm, linewidth=1.3)
        style.label(panel, title=translator.message(METRIC_NAMES[metric]), x=translator.message("Step"))
    style.legend_below(figure, axes[0])
    return figure


def published(view: AgentView, translator: Translator) -> Figure | None:
    """Return the published validation rewards; estimates are hollow dots without a line."""
    runs = {run: values_of(view.published(run, "val_reward")) for run in RUNS}
    if not any(runs.values()):
        return None
    figure, (axes,) = style.panels(1, 1, height=3.4)
    for index, (run, curve) in enumerate(runs.items()):
        series_style = style.series_style(index)
        style.line(axes, curve, series_style, name=translator.message(RUN_NAMES[run]), marker=series_style.marker)
    guessed = values_of(view.published("nokl", "val_reward_estimated"))
    if guessed:
        hollow = {"markerfacecolor": "none", "label": translator.message("no KL, estimated by document 003")}
        style.dots(axes, guessed, style.SeriesStyle(style.GREY, "o", ""), **hollow)
    style.label(axes, x=translator.message("Step"), y=translator.message("Validation reward"))
    axes.legend()
    return figure


def _pair(
    axes: Axes, x: float, rows: Mapping[str, EvidenceRow | None], series_style: style.SeriesStyle, arm: str
) -> None:
    """Draw an arm's scores above each other, joined by a line: sampled filled, greedy open."""
    measured = {mode: row for mode, row in rows.items() if row is not None}
    axes.plot([x] * len(measured), [100 * row.value for row in measured.values()], color=series_style.color, alpha=0.4)
    for mode, row in measured.items():
        is_filled = mode == "sampled"
        face: dict[str, Any] = {
            "markerfacecolor": series_style.color if is_filled else "white",
            "label": arm if is_filled else "_",
        }
        style.bars(axes, {x: row}, series_style, scale=100, linestyle="", markersize=6, **face)
