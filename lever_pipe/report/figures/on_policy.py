"""On-policy GRPO drawn: accuracy against prompts, divergence and entropy by step, accuracy against KL_BETA."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lever_pipe.report.figures import style
from lever_pipe.report.figures.accuracy import ACCURACY
from lever_pipe.report.tables.comparisons.families import ORACLE
from lever_pipe.report.tables.evidence import MEAN, Estimate, Interval, Pair
from lever_pipe.report.tables.on_policy.study import (
    AGAINST_BASE,
    DISTIL,
    OFFLINE,
    ON_POLICY,
    REINFORCE,
    PresetRuns,
    Run,
)
from lever_pipe.report.tables.text import beta_text

BY_STEP = {"kl_exact": ("Exact KL to the RCE base", "nats a pick"), "entropy": ("Entropy of the first pick", "nats")}
"""Step metrics that are drawn, their titles and units."""
NEIGHBOURS = 5
"""Steps over which step metrics are averaged for the eye."""
THOUSAND = 1000.0
SCALE = "KL_BETA (not to scale), bars: 95 % interval"


def by_prompts(study: PresetRuns) -> Figure | None:
    """Return accuracy against prompts by mode, the smallest KL_BETA in front; None without counted prompts.

    RCE base, offline GRPO, oracle distillation and the pool oracle ask nothing while they learn: they are levels, over
    the seeds of the on-policy run in front.
    """
    runs = [run for run in study.at_last(ON_POLICY) if study.prompts(run) is not None]
    if not runs:
        return None
    figure, (axes,) = style.panels(1, 1, height=5.2)
    first, *others = runs
    for index, run in enumerate([first, *study.at_last(REINFORCE)]):
        name = "REINFORCE" if run.kind == REINFORCE else f"On-policy, KL_BETA={beta_text(run.beta or 0.0)}"
        style.with_band(axes, _by_prompts(study, run), style.look(index), name=name)
    for run in others:
        points = _by_prompts(study, run)
        name = "On-policy, every larger KL_BETA" if run is others[0] else "_"
        values = [point.value for point in points.values()]
        axes.plot(list(points), values, color=style.GREY, alpha=0.5, linewidth=1.0, zorder=1, label=name)
    reach = axes.get_xlim()
    for index, (name, accuracy) in enumerate(_levels(study, first.seeds)):
        seen = style.look(index + 2)
        axes.axhline(accuracy, color=seen.color, linestyle=seen.dash, linewidth=1.4, label=name)
    axes.set_xlim(*reach)
    title = f"Accuracy against prompts asked after RCE, {study.samples} samples, bands: 95 % interval"
    style.label(axes, title=title, x="Thousand LVLM prompts", y=f"{ACCURACY}, mean over shots")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3)
    return figure


def by_step(study: PresetRuns) -> Figure | None:
    """Return exact KL and entropy by step, a line a KL_BETA, with the range over seeds; None without steps."""
    steps = study.steps(ON_POLICY)
    steps = steps[steps["metric"].isin(BY_STEP)]
    if steps.empty:
        return None
    figure, axes = style.panels(1, len(BY_STEP), height=4.8)
    betas = sorted({float(beta) for beta in steps["kl_beta"]})
    for panel, (metric, (title, unit)) in zip(axes, BY_STEP.items(), strict=True):
        of_metric = steps[steps["metric"] == metric]
        for index, beta in enumerate(betas):
            _curve(panel, of_metric[of_metric["kl_beta"] == beta], style.look(index), f"KL_BETA={beta_text(beta)}")
        style.label(panel, title=title, x="Step (batches of drawn groups)", y=unit)
        panel.set_ylim(bottom=0.0)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=min(len(names), 4))
    return figure


def by_beta(study: PresetRuns) -> Figure | None:
    """Return accuracy and gain over the RCE base against KL_BETA, on-policy and offline; None of a single beta."""
    modes = {"On-policy": study.at_last(ON_POLICY), "Offline": study.at_last(OFFLINE)}
    betas = sorted({run.beta or 0.0 for runs in modes.values() for run in runs})
    if len(betas) < 2:
        return None
    figure, (left, right) = style.panels(1, 2, height=4.4)
    for index, (mode, runs) in enumerate((mode, runs) for mode, runs in modes.items() if runs):
        places = {run: betas.index(run.beta or 0.0) + 0.12 * index for run in runs}
        name = f"{mode}, epoch {runs[0].epoch}, {seeds_text(runs[0])}"
        accuracies = {place: study.interval(run, MEAN) for run, place in places.items()}
        gains = {place: _gain(study, run) for run, place in places.items()}
        style.with_bars(left, accuracies, style.look(index), name=name)
        style.with_bars(right, {at: gain for at, gain in gains.items() if gain}, style.look(index), name=name)
    right.axhline(0.0, color=style.GREY, linewidth=0.9)
    for axes in (left, right):
        axes.set_xticks(range(len(betas)), [beta_text(beta) for beta in betas])
    style.label(left, title=f"Accuracy at {study.samples} samples", x=SCALE, y=f"{ACCURACY}, mean over shots")
    style.label(right, title="Gain over the RCE base, same seeds", x=SCALE, y="Points, mean over shots")
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=2)
    return figure


def seeds_text(run: Run) -> str:
    """Return `1 seed` or `3 seeds`."""
    return f"{len(run.seeds)} seed{'s' if len(run.seeds) > 1 else ''}"


def _gain(study: PresetRuns, run: Run) -> Interval | None:
    """Return the paired difference of a run and its RCE base with its interval, or None where none was made."""
    if study.start is None:
        return None
    family = study.family(AGAINST_BASE[run.kind])
    found = study.measured.evidence.paired(Pair(family, run.group, study.start.group, study.samples, MEAN))
    return found and Interval(found.difference, found.low, found.high, len(run.seeds))


def _by_prompts(study: PresetRuns, run: Run) -> dict[float, Interval]:
    """Return a run's accuracies by thousand prompts, from the RCE base of the same seeds on."""
    base = study.accuracy_over(study.start, run.seeds) if study.start else None
    # Over other seeds than its own the base has no interval, so there the band begins at the line.
    same = study.start is not None and study.start.seeds == run.seeds
    start = {} if base is None else {0.0: Interval(base, base, base, len(run.seeds))}
    if study.start is not None and same:
        start = {0.0: study.interval(study.start, MEAN)}
    epochs = [one for one in study.runs(run.kind) if one.beta == run.beta and one.epoch <= run.epoch]
    asked = {one: study.prompts(one) for one in epochs}
    return start | {n / THOUSAND: study.interval(one, MEAN) for one, n in asked.items() if n is not None}


def _levels(study: PresetRuns, seeds: Sequence[int]) -> Iterator[tuple[str, float]]:
    """Yield name and accuracy of what asks nothing while it learns, over the given seeds where it has them."""
    runs = [("RCE base", study.start)] if study.start else []
    runs += [(f"Offline GRPO, KL_BETA={run.beta_text}", run) for run in study.at_last(OFFLINE)[:1]]
    runs += [("Oracle distillation", run) for run in study.at_last(DISTIL)]
    for name, run in runs:
        accuracy = study.accuracy_over(run, seeds)
        if accuracy is not None:
            yield name, accuracy
    oracle = study.measured.evidence.intervals.get(Estimate(ORACLE, study.samples, MEAN))
    if oracle is not None:
        yield "Pool oracle", oracle.value


def _curve(axes: Axes, rows: pd.DataFrame, seen: style.Look, name: str) -> None:
    """Draw the mean over seeds by step; a band reaches from the lowest to the highest of several seeds."""
    by_seed = rows.pivot(index="step", columns="seed", values="value").sort_index()
    smooth = by_seed.rolling(NEIGHBOURS, center=True, min_periods=1).mean()
    places: Sequence[int] = list(smooth.index)
    axes.plot(
        places,
        smooth.mean(axis=1),
        color=seen.color,
        marker=seen.marker,
        markersize=4,
        markevery=max(1, len(places) // 6),
        linestyle=seen.dash,
        linewidth=1.4,
        label=name,
    )
    if smooth.shape[1] > 1:
        axes.fill_between(places, smooth.min(axis=1), smooth.max(axis=1), color=seen.color, alpha=0.12, linewidth=0)
