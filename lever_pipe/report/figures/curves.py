"""Training curves: six metrics of the long GRPO runs, and RCE by epoch."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lever_pipe.report.figures import style
from lever_pipe.report.tables.documents.document_000 import long_runs
from lever_pipe.report.tables.policies import rce_epochs
from lever_pipe.report.tables.results import Results, means
from lever_pipe.report.tables.text import beta_text

PANELS = (
    ("kl", "KL penalty (k3)", "nats"),
    ("kl_loss", "KL loss (beta x KL)", "loss"),
    ("ppo_loss", "PPO loss", "loss"),
    ("loss", "GRPO loss (PPO + KL)", "loss"),
    ("val_loss", "Validation loss", "nats a selection"),
    ("mean_ratio", "Mean ratio policy / reference", "ratio"),
)


def training_curves(results: Results) -> Figure | None:
    """Return six panels, a line a beta, bands of one standard deviation over seeds; None without GRPO."""
    runs = long_runs(results)
    if not runs:
        return None
    figure, axes = style.panels(2, 3, height=6.2)
    for panel, (metric, title, unit) in zip(axes, PANELS, strict=True):
        for index, (beta, run) in enumerate(runs.items()):
            _curve(panel, run, metric, style.look(index), f"KL_BETA={beta_text(beta)}")
        style.label(panel, title=title, x="GRPO epoch", y=unit)
        _epoch_ticks(panel, runs)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=min(len(names), 6))
    return figure


def rce_curve(results: Results) -> Figure | None:
    """Return RCE losses and accuracies by epoch; None without RCE."""
    training = results.training[results.training["stage"] == "rce"]
    if training.empty:
        return None
    figure, (losses, accuracies) = style.panels(1, 2, height=4.2)
    for index, (metric, name) in enumerate((("loss", "training"), ("val_loss", "validation"))):
        _curve(losses, training, metric, style.look(index), name)
    style.label(losses, title="RCE loss", x="RCE epoch", y="nats a selection")
    epochs = sorted(int(epoch) for epoch in training["epoch"].unique())
    style.whole_ticks(losses, epochs)
    losses.legend()
    _rce_accuracy(accuracies, results)
    style.whole_ticks(accuracies, epochs)
    return figure


def _rce_accuracy(axes: Axes, results: Results) -> None:
    groups = rce_epochs(results.scores)
    samples = int(results.scores["samples"].max()) if groups else 0
    shots = sorted({int(k) for group in groups for k in group.rows["shots"]})
    for index, k in enumerate(shots):
        points = [(g.epoch, g.by_shots(samples, [k])[k]) for g in groups if k in g.by_shots(samples, [k])]
        epochs = [epoch or 0 for epoch, _ in points]
        spread = [entry.sd if entry.n > 1 else 0.0 for _, entry in points]
        seen = style.look(index)
        axes.errorbar(
            [epoch + 0.06 * (index - (len(shots) - 1) / 2) for epoch in epochs],
            [entry.value for _, entry in points],
            yerr=spread,
            color=seen.color,
            marker=seen.marker,
            linestyle=seen.dash,
            capsize=2,
            label=f"{k} shot{'s' if k > 1 else ''}",
        )
    style.label(axes, title=f"RCE accuracy at {samples} samples", x="RCE epoch", y="VQA accuracy (%)")
    if shots:
        axes.legend()


def _curve(axes: Axes, rows: pd.DataFrame, metric: str, seen: style.Look, name: str) -> None:
    found = means(rows[rows["metric"] == metric], ["epoch"], "value")
    epochs = [int(epoch) for epoch in found]
    center = [entry.value for entry in found.values()]
    few = len(epochs) <= 12
    axes.plot(epochs, center, color=seen.color, linestyle=seen.dash, marker=seen.marker if few else "", label=name)
    if any(entry.n > 1 for entry in found.values()):
        spread = [entry.sd if entry.n > 1 else 0.0 for entry in found.values()]
        low = [value - sd for value, sd in zip(center, spread, strict=True)]
        high = [value + sd for value, sd in zip(center, spread, strict=True)]
        axes.fill_between(epochs, low, high, color=seen.color, alpha=0.15, linewidth=0)


def _epoch_ticks(axes: Axes, runs: Mapping[float, pd.DataFrame]) -> None:
    last = max(int(run["epoch"].max()) for run in runs.values())
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100) if last <= 6 * step)
    ticks = [1, *(epoch for epoch in range(step, last + 1, step) if epoch > 1)]
    style.whole_ticks(axes, ticks)
