"""How accuracy moves with training: RCE epochs and the GRPO epochs after them, and what each KL_BETA adds."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lever_pipe.report.figures import style
from lever_pipe.report.figures.accuracy import ACCURACY
from lever_pipe.report.tables import policies
from lever_pipe.report.tables.documents.extras import shots_of
from lever_pipe.report.tables.evidence import MEAN, Interval, Paired
from lever_pipe.report.tables.policies import PolicyGroup
from lever_pipe.report.tables.results import Results
from lever_pipe.report.tables.text import beta_text


def by_epoch(results: Results) -> Figure | None:
    """Return accuracy by epoch, mean over shots, a panel for RCE and one for GRPO; None without scores."""
    rce, grpo = policies.rce_epochs(results.scores), policies.grpo_epochs(results.scores)
    grpo = [group for group in grpo if group.base == results.base]
    if not rce:
        return None
    samples, shots = int(results.scores["samples"].max()), shots_of(results.scores)
    figure, (left, right) = style.panels(1, 2, height=4.6)
    for index, k in enumerate(shots):
        name = f"{k} shot{'s' if k > 1 else ''}"
        style.with_band(left, _by_epoch(results, rce, samples, k), style.look(index), name=name)
    style.label(left, title=f"RCE at {samples} samples, bands: 95 % interval", x="RCE epoch", y=ACCURACY)
    style.whole_ticks(left, [group.epoch or 0 for group in rce])
    left.legend()
    if not grpo:
        right.set_visible(False)
        return figure
    base = [group for group in rce if group.epoch == results.base]
    start = {0.0: results.evidence.interval(base[0].group, samples, MEAN)} if base else {}
    betas = sorted({group.beta or 0.0 for group in grpo})
    for index, beta in enumerate(betas):
        of_beta = [group for group in grpo if group.beta == beta]
        points = {**start, **_by_epoch(results, of_beta, samples, MEAN)}
        alpha = 0.2 / len(betas)  # bands of equal policies lie on each other and add up
        style.with_band(right, points, style.look(index), name=f"KL_BETA={beta_text(beta)}", alpha=alpha)
    title = "GRPO from its RCE base, bands: 95 % interval"
    style.label(right, title=title, x="GRPO epoch (0: base), mean over shots", y=ACCURACY)
    style.whole_ticks(right, sorted({0 if base else 1, *(group.epoch or 0 for group in grpo)}))
    right.legend(ncols=2)
    return figure


def beta_differences(results: Results) -> Figure | None:
    """Return what each KL_BETA adds to its RCE base and how far it lies from the highest one; None without them."""
    families = {
        "Difference to the RCE base": _differences(results, "grpo-against-rce"),
        "Difference to the highest KL_BETA": _differences(results, "highest-beta"),
    }
    if not any(families.values()):
        return None
    figure, axes = style.panels(1, 2, height=3.4)
    for panel, (title, found) in zip(axes, families.items(), strict=True):
        _forest(panel, found)
        style.label(panel, title=title, x="Points, mean over shots, bars: 95 % interval", y="KL_BETA")
    return figure


def _by_epoch(results: Results, groups: list[PolicyGroup], samples: int, shots: int | str) -> dict[float, Interval]:
    return {float(g.epoch or 0): results.evidence.interval(g.group, samples, shots) for g in groups}


def _differences(results: Results, family: str) -> dict[str, Paired]:
    """Return the differences of the main preset's family at the mean over shots, by beta of the left side."""
    labels = {group.group: beta_text(group.beta or 0.0) for group in policies.last_grpo(results.scores)}
    return {
        labels[pair.left]: found
        for pair, found in results.evidence.comparisons.items()
        if pair.family == family and pair.shots == MEAN and pair.left in labels
    }


def _forest(axes: Axes, found: Mapping[str, Paired]) -> None:
    axes.axvline(0.0, color=style.GREY, linewidth=0.9)
    for row, pair in enumerate(found.values()):
        bars = [[pair.difference - pair.low], [pair.high - pair.difference]]
        axes.errorbar([pair.difference], [row], xerr=bars, color=style.PALETTE[0], marker="o", capsize=3)
    axes.set_yticks(range(len(found)), list(found))
    axes.invert_yaxis()
