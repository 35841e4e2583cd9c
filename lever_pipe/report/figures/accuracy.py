"""Accuracy by shots, by samples, and by preset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lever_pipe.report.figures import style
from lever_pipe.report.tables import policies
from lever_pipe.report.tables.documents.extras import shots_of
from lever_pipe.report.tables.evidence import Evidence, Interval
from lever_pipe.report.tables.policies import PolicyGroup
from lever_pipe.report.tables.results import Results, means
from lever_pipe.report.tables.text import beta_text

ACCURACY = "VQA accuracy (%)"


def by_shots(results: Results) -> Figure | None:
    """Return all policies on the left, RCE and the GRPO betas enlarged on the right; None without scores."""
    scores = results.scores
    learned = [*policies.rce_epochs(scores)[-1:], *_of_base(policies.last_grpo(scores), results.base)]
    everything = [*policies.baselines(scores), *learned]
    if not everything:
        return None
    samples, shots = int(scores["samples"].max()), shots_of(scores)
    figure, (left, right) = style.panels(1, 2, height=5.6)
    for index, group in enumerate(policies.baselines(scores)):
        _line(left, _points(group, samples, shots, results.evidence), style.look(index), name=group.label)
    for group in reversed(learned):
        seen = style.Look("#000000", "X", "-") if group.kind == "rce" else style.Look(style.GREY, "", "-")
        name = group.label if group.kind == "rce" else f"GRPO epoch {group.epoch}, every KL_BETA"
        _line(left, _points(group, samples, shots, results.evidence), seen, name=name)
    style.label(left, title=f"All policies at {samples} samples, bars: 95 % interval", x="Shots", y=ACCURACY)
    _side_by_side(right, learned, samples, shots, results.evidence)
    style.label(right, title="RCE and GRPO, bars: 95 % interval", x="Shots", y=ACCURACY)
    for axes in (left, right):
        style.whole_ticks(axes, shots)
        _legend_below(axes)
    return figure


def by_samples(results: Results) -> Figure | None:
    """Return prefix accuracy and the random subsets' mean and spread by samples, at most shots."""
    scores = results.scores
    baselines = [g for g in policies.baselines(scores) if g.label in _CONTRASTS]
    learned = [*policies.rce_epochs(scores)[-1:], *_one_beta(_of_base(policies.last_grpo(scores), results.base))]
    groups = [*baselines, *learned]
    if not groups:
        return None
    k = max(shots_of(scores))
    figure, (axes,) = style.panels(1, 1, height=5.0)
    for index, group in enumerate(groups):
        _by_samples_line(axes, group, k, style.look(index), 1 + 0.035 * (index - (len(groups) - 1) / 2))
    counts = sorted(int(n) for n in scores["samples"].unique())
    axes.set_xscale("log")
    axes.minorticks_off()
    style.whole_ticks(axes, counts)
    title = f"Accuracy by evaluated questions, {k} shots"
    style.label(axes, title=title, x="Questions (log scale)", y=ACCURACY)
    axes.plot([], [], color=style.GREY, marker="o", linestyle="-", label="line: the first questions (published subset)")
    axes.errorbar(
        [], [], yerr=[], color=style.GREY, marker="o", markerfacecolor="white", linestyle="", capsize=3,
        label="open: mean of random subsets, bar ± sd",
    )  # fmt: skip
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def by_preset(results: Results, arms: pd.DataFrame, main_preset: str) -> Figure | None:
    """Return RCE and GRPO accuracy by shots, a panel a preset; None without other presets."""
    if arms.empty:
        return None
    main = results.scores[results.scores["preset"] == main_preset]
    scores = pd.concat([main, arms])
    presets = [main_preset, *sorted(set(arms["preset"]))]
    samples, shots = int(scores["samples"].max()), shots_of(scores)
    figure, axes = style.panels(1, len(presets), height=5.2)
    for panel, preset in zip(axes, presets, strict=True):
        of_preset = scores[scores["preset"] == preset]
        groups = [*policies.rce_epochs(of_preset)[-1:], *policies.last_grpo(of_preset)]
        _side_by_side(panel, groups, samples, shots, results.evidence)
        style.label(panel, title=f"Preset {preset}, {samples} samples", x="Shots", y=ACCURACY)
        style.whole_ticks(panel, shots)
        _legend_below(panel)
    low, high = min(a.get_ylim()[0] for a in axes), max(a.get_ylim()[1] for a in axes)
    for panel in axes:
        panel.set_ylim(low, high)
    return figure


_CONTRASTS = tuple(policies.BASELINE_LABELS[name] for name in ("random", "similar_both", "oracle"))


def _side_by_side(
    axes: Axes, groups: Sequence[PolicyGroup], samples: int, shots: Sequence[int], evidence: Evidence
) -> None:
    for index, group in enumerate(groups):
        shift = 0.07 * (index - (len(groups) - 1) / 2)
        points = {k + shift: point for k, point in _points(group, samples, shots, evidence).items()}
        _line(axes, points, style.look((index + 6) % 7), name=_short(group))


def _points(group: PolicyGroup, samples: int, shots: Sequence[int], evidence: Evidence) -> dict[float, Interval]:
    return {float(k): evidence.interval(group.group, samples, k) for k in shots}


def _line(axes: Axes, points: Mapping[float, Interval], seen: style.Look, *, name: str) -> None:
    """Draw accuracies with their intervals; a series without a marker has no bars either."""
    taken = axes.get_legend_handles_labels()[1]
    style.with_bars(axes, points, seen, name="_" if name in taken else name)


def _by_samples_line(axes: Axes, group: PolicyGroup, k: int, seen: style.Look, factor: float) -> None:
    rows = group.rows[group.rows["shots"].isin([0, k])]
    first = means(rows[rows["subset"] == "prefix"], ["samples"], "accuracy")
    axes.plot(
        [n * factor for n in first],
        [entry.value for entry in first.values()],
        color=seen.color,
        marker=seen.marker,
        linestyle=seen.dash,
        label=_short(group),
    )
    drawn = rows[rows["subset"] != "prefix"]
    if drawn.empty:
        return
    spread = drawn.groupby(["samples", "policy"])["accuracy"].agg(["mean", "std"]).groupby("samples").mean()
    axes.errorbar(
        [n * factor for n in spread.index],
        spread["mean"],
        yerr=spread["std"].fillna(0.0),
        color=seen.color,
        marker=seen.marker,
        markerfacecolor="white",
        linestyle="",
        capsize=3,
    )


def _short(group: PolicyGroup) -> str:
    return f"GRPO {beta_text(group.beta)}, epoch {group.epoch}" if group.beta is not None else group.label


def _of_base(groups: Sequence[PolicyGroup], base: int | None) -> list[PolicyGroup]:
    return [group for group in groups if group.base == base]


def _one_beta(groups: Sequence[PolicyGroup]) -> list[PolicyGroup]:
    """Return the group of 0.15, the documents' reference, or the middle one."""
    named = [group for group in groups if group.beta == 0.15]
    return named or list(groups[len(groups) // 2 : len(groups) // 2 + 1])


def _legend_below(axes: Axes) -> None:
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2)
