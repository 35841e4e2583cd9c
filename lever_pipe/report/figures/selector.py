"""Figures of study `lever`: policies, shots, KL against accuracy, learning, rewards, choices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lever_pipe.base.policy_names import PolicyName, beta_text
from lever_pipe.report.catalogue import Translator
from lever_pipe.report.context import ReportContext
from lever_pipe.report.figures import style
from lever_pipe.report.labels import label
from lever_pipe.report.selector.copying import measured
from lever_pipe.report.selector.documents import long_runs

OFFLINE, ON_POLICY, OTHER = style.series_style(0), style.series_style(1), style.SeriesStyle(style.GREY, "o", "-")
METRICS = ("kl", "kl_loss", "ppo_loss", "loss", "val_loss", "mean_ratio")
"""Panels of document 000."""
WORDS = {
    "grpo": "Offline GRPO",
    "on_policy": "On-policy GRPO",
}
METRIC_NAMES = {
    "kl": "KL (k3)",
    "kl_loss": "KL loss",
    "ppo_loss": "PPO loss",
    "loss": "Loss",
    "val_loss": "Validation loss",
    "mean_ratio": "Mean ratio",
}
ASPECTS = {
    "relation": "Relation",
    "key": "Value asked",
    "fact": "Exact fact",
    "object": "Object",
    "type": "Question type",
}


def frontier(context: ReportContext, translator: Translator) -> Figure | None:
    """Return accuracy against the KL divergence from the RCE base, and against KL_BETA on its own axis."""
    modes = {"grpo": (context.main.last_grpo, OFFLINE), "on_policy": (context.main.on_policy_groups, ON_POLICY)}
    if not any(groups for groups, _ in modes.values()):
        return None
    figure, (left, right) = style.panels(1, 2, height=3.9)
    for kind, (groups, series_style) in modes.items():
        rows = {beta: row for beta, group in groups.items() if (row := context.accuracy(group)) is not None}
        kl = {beta: context.evidence.find(groups[beta], "kl_to_base", at="from base") for beta in rows}
        points = {row.value: rows[beta] for beta, row in kl.items() if row is not None}
        name = translator.message(WORDS[kind])
        style.bars(left, points, series_style, linestyle="", label=name)
        style.bars(right, rows, series_style, label=name)
    # Symlog, because both axes contain 0.
    left.set_xscale("symlog", linthresh=0.01, linscale=0.5)
    left.set_xlim(left=0)
    right.set_xscale("symlog", linthresh=0.05, linscale=0.5)
    _beta_ticks(right, sorted({beta for groups, _ in modes.values() for beta in groups}))
    base = context.accuracy(context.main.last_rce or "")
    for axes in (left, right):
        if base is not None:
            axes.axhline(base.value, color=style.GREY, linewidth=1.0, label=translator.message("RCE"))
    style.label(
        left,
        x=translator.message("KL from the RCE base at its greedy selections (nats a step)"),
        y=translator.message("VQA accuracy (%), mean over shots"),
    )
    style.label(right, x=translator.message("KL_BETA"))
    style.legend_below(figure, left)
    return figure


def primary(context: ReportContext, translator: Translator) -> Figure | None:
    """Return the primary comparisons: the last epochs against their RCE base, mean over shots."""
    main = context.main
    groups = [
        *main.last_grpo.values(),
        *main.on_policy_groups.values(),
        *main.over_betas("grpo"),
        *main.over_betas("on_policy"),
    ]
    base = main.last_rce
    rows = [(group, context.compared(group, base)) for group in groups if base]
    marks = [(_label(translator, group), row, _series_style(group)) for group, row in rows if row is not None]
    if not marks:
        return None
    figure, (axes,) = style.panels(1, 1, height=1.1 + 0.27 * len(marks))
    style.zero_line(axes)
    style.forest(axes, marks)
    style.label(axes, x=translator.message("Points over the RCE base, mean over shots"))
    return figure


def training_curves(context: ReportContext, translator: Translator) -> Figure | None:
    """Return six training metrics of the long offline runs by epoch, a line per KL_BETA (document 000)."""
    by_beta = {beta: {epoch for run in seeds.values() for epoch in run} for beta, seeds in long_runs(context).items()}
    runs = {beta: epochs for beta, epochs in by_beta.items() if len(epochs) > 1}
    if not runs:
        return None
    figure, axes = style.panels(2, 3, height=4.8)
    for panel, metric in zip(axes, METRICS, strict=True):
        for index, (beta, epochs) in enumerate(runs.items()):
            rows = {e: context.evidence.find(context.grpo(beta, e), metric) for e in sorted(epochs)}
            values = {epoch: row.value for epoch, row in rows.items() if row is not None}
            style.line(panel, values, style.series_style(index), name=_beta(translator, beta))
        style.label(panel, title=translator.message(METRIC_NAMES[metric]), x=translator.message("GRPO epoch"))
        style.epoch_ticks(panel, max(max(epochs) for epochs in runs.values()))
    style.legend_below(figure, axes[0])
    return figure


def learning(context: ReportContext, translator: Translator) -> Figure | None:
    """Return the gain of GRPO over its RCE base by epoch: a dot per seed, a line of means, paired by seed."""
    main = context.main
    kinds, base = (
        {"grpo": main.grpo, "on_policy": main.on_policy},
        main.on_policy_base if main.base is None else main.base,
    )
    panels = [(kind, groups) for kind, groups in kinds.items() if groups]
    if not panels:
        return None
    figure, axes = style.panels(1, len(panels), height=3.9)
    every = sorted({beta for _, groups in panels for _, beta, _ in groups})  # one style per KL_BETA in both panels
    for panel, (kind, groups) in zip(axes, panels, strict=True):
        betas = sorted({beta for _, beta, _ in groups})
        for index, beta in enumerate(betas):
            epochs = {e: name for (start, b, e), name in sorted(groups.items()) if (start, b) == (base, beta)}
            series_style, aside = style.series_style(every.index(beta)), 0.06 * (index - len(betas) / 2)
            _paired(panel, context, epochs, series_style, _beta(translator, beta), aside)
        panel.axhline(0.0, color=style.GREY, linewidth=0.9)
        style.label(panel, title=translator.message(WORDS[kind]), x=translator.message("GRPO epoch"))
        style.whole_ticks(panel, sorted({e for _, _, e in groups}))
    axes[0].set_ylabel(translator.message("Points over the RCE base, mean over shots"))
    style.legend_below(figure, *axes, columns=4)
    return figure


def selections(context: ReportContext, translator: Translator) -> Figure | None:
    """Return a heat map: the share of demonstrations at each rank that agree with their query, by policy."""
    aspects = [a for a in ("relation", "key", "fact", "object", "type") if context.evidence.where(metric=f"agrees.{a}")]
    chosen = _example_groups(context) if aspects else []
    groups = [group for group in chosen if context.evidence.where(group, f"agrees.{aspects[0]}")]
    if not groups:
        return None
    figure, axes = style.panels(1, len(aspects), height=1.2 + 0.32 * len(groups))
    for index, (panel, aspect) in enumerate(zip(axes, aspects, strict=True)):
        names = [_label(translator, group) if index == 0 else "" for group in groups]
        shares = pd.DataFrame([_shares(context, group, aspect) for group in groups], names)
        _percent_heat(panel, shares, translator.message(ASPECTS[aspect]))
        panel.set_xlabel(translator.message("Rank"))
    return figure


def copies(context: ReportContext, translator: Translator) -> Figure | None:
    """Return two heat maps by policy: accuracies of the LVLM and of a vote, and the ranks of copied answers."""
    groups = [group for group in _example_groups(context) if measured(context, group, "vote")]
    if not groups:
        return None
    earned = {"llm": "LVLM", "vote": "Vote", "llm.shown": "LVLM, shown", "llm.unshown": "LVLM, none"}
    ranks = {f"copied.{rank}": str(rank) for rank in range(1, max(context.shots) + 1)}
    figure, axes = style.panels(1, 2, height=1.6 + 0.32 * len(groups))
    for panel, columns, title in zip(axes, (earned, ranks), ("Accuracy (%)", "Copied from rank (%)"), strict=True):
        cells = [[measured(context, group, measure) for measure in columns] for group in groups]
        shares = pd.DataFrame([[math.nan if row is None else 100 * row.value for row in rows] for rows in cells])
        shares.index = [_label(translator, group) if panel is axes[0] else "" for group in groups]
        shares.columns = [translator.message(name).replace(", ", ",\n") for name in columns.values()]
        _percent_heat(panel, shares, translator.message(title))
    return figure


def _percent_heat(axes: Axes, shares: pd.DataFrame, title: str) -> None:
    style.heat(axes, shares, shares.map(lambda share: "" if math.isnan(share) else f"{share:.0f}"))
    axes.set_title(title, fontsize=9.0)


def by_epoch(context: ReportContext, translator: Translator) -> Figure | None:
    """Return RCE losses and accuracy by epoch, the starting points of GRPO runs."""
    epochs = context.main.rce
    rows = {epoch: context.accuracy(group) for epoch, group in epochs.items()}
    accuracies = {float(epoch): row for epoch, row in rows.items() if row is not None}
    if not accuracies:
        return None
    figure, (left, right) = style.panels(1, 2, height=3.5)
    for index, metric in enumerate(("loss", "val_loss")):
        losses = {epoch: context.evidence.find(group, metric) for epoch, group in epochs.items()}
        points = {float(epoch): row for epoch, row in losses.items() if row is not None}
        style.bars(left, points, style.series_style(index), label=translator.message(METRIC_NAMES[metric]))
    style.bars(right, accuracies, style.series_style(0))
    for panel in (left, right):
        style.whole_ticks(panel, list(epochs))
    left.legend()
    style.label(left, x=translator.message("RCE epoch"), y=translator.message("nats a selection"))
    style.label(right, x=translator.message("RCE epoch"), y=translator.message("VQA accuracy (%), mean over shots"))
    return figure


def _example_groups(context: ReportContext) -> list[str]:
    """Return example groups: baselines with the oracle, the last RCE epoch, and one group per mode of GRPO."""
    main = context.main
    chosen = [*(f"baseline/{name}" for name in ("random", "similar_both", "oracle")), main.last_rce]
    chosen += [main.last_grpo.get(main.reference_beta or 0.0), next(iter(main.on_policy_groups.values()), None)]
    return [group for group in dict.fromkeys(chosen) if group]


def _series_style(group: str) -> style.SeriesStyle:
    return {"grpo": OFFLINE, "on_policy": ON_POLICY}.get(PolicyName.parse(group).kind, OTHER)


def _label(translator: Translator, group: str) -> str:
    return translator.text(label(group, with_epoch=False))


def _beta(translator: Translator, beta: float) -> str:
    return translator.message("KL_BETA {beta}", beta=beta_text(beta))


def _beta_ticks(axes: Axes, betas: Sequence[float]) -> None:
    """Put ticks at betas, skipping those that are close to the previous tick."""
    ticks: list[float] = []
    for beta in betas:
        if not ticks or beta >= 2 * ticks[-1] or ticks[-1] == 0:
            ticks.append(beta)
    axes.set_xticks(ticks, [beta_text(beta) for beta in ticks])
    axes.minorticks_off()


def _paired(
    axes: Axes,
    context: ReportContext,
    epochs: dict[int, str],
    series_style: style.SeriesStyle,
    name: str,
    offset: float,
) -> None:
    # Every line starts at the RCE base.
    gains = {0.0: [0.0]} | {epoch + offset: _gains(context, PolicyName.parse(run)) for epoch, run in epochs.items()}
    points = {x: values for x, values in gains.items() if values}
    style.line(
        axes,
        {x: math.fsum(values) / len(values) for x, values in points.items()},
        series_style,
        name=name,
    )
    for x, values in points.items():
        axes.plot([x] * len(values), values, series_style.marker, color=series_style.color, markersize=3.5, alpha=0.7)


def _gains(context: ReportContext, name: PolicyName) -> list[float]:
    """Return by seed the gains of a group's runs over their RCE base: mean over shots, in points."""
    seeds = sorted({seed for arm in context.config.arms if arm.preset == name.preset for seed in arm.seeds})
    runs = [replace(name, seed=seed) for seed in seeds]
    sides = ((_mean_over_shots(context, run), _mean_over_shots(context, run.start)) for run in runs)
    return [level - base for level, base in sides if level is not None and base is not None]


def _mean_over_shots(context: ReportContext, policy: PolicyName) -> float | None:
    rows = [context.accuracy(str(policy), k) for k in context.shots]
    values = [row.value for row in rows if row is not None]
    return math.fsum(values) / len(values) if len(values) == len(rows) else None


def _shares(context: ReportContext, group: str, aspect: str) -> dict[str, float]:
    """Return the percentages of agreement by rank."""
    shares = {int(row.at.split()[1]): 100 * row.value for row in context.evidence.where(group, f"agrees.{aspect}")}
    return {str(rank): shares[rank] for rank in sorted(shares)}
