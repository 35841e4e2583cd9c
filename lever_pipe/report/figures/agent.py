"""Figures of study `intention`: validation by step, reward against KL and entropy, training, published curves."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from lever_pipe.report.catalogue import Voice
from lever_pipe.report.cells import say
from lever_pipe.report.evidence import EvidenceRow
from lever_pipe.report.figures import style
from lever_pipe.report.material import Material

MODES = ("sampled", "greedy")
TRAINING = ("reward", "kl", "entropy", "grad_norm", "pg_loss", "learning_rate")
EXACT = ("learning_rate",)
"""Training metrics without noise, which are not smoothed."""
PUBLISHED = ("nokl", "kl")


def validation(material: Material, voice: Voice) -> Figure | None:
    """Return validation reward by step, a panel a decoding, a line an arm with a dot a seed."""
    arms = _arms(material)
    if not any(_curve(material, f"arm~{arm}", mode) for arm in arms for mode in MODES):
        return None
    figure, axes = style.panels(1, len(MODES), height=4.2)
    for panel, mode in zip(axes, MODES, strict=True):
        for index, arm in enumerate(arms):
            _arm(panel, material, arm, mode, style.look(index))
        style.label(panel, title=voice.text(say(f"word.{mode}")), x=voice.text(say("axis.step")))
    _same_scale(axes)
    axes[0].set_ylabel(voice.text(say("axis.validation_reward")))
    style.legend_below(figure, axes[0])
    return figure


def reward_against_kl(material: Material, voice: Voice) -> Figure | None:
    """Return the held-out score of each arm against its KL and its entropy at the end, by decoding."""
    arms = [arm for arm in _arms(material) if material.evidence.find(f"arm~{arm}", "kl_end", study="intention")]
    if not arms:
        return None
    figure, axes = style.panels(1, 2, height=4.0)
    for panel, metric in zip(axes, ("kl_end", "entropy_end"), strict=True):
        for index, arm in enumerate(arms):
            place = material.evidence.find(f"arm~{arm}", metric, study="intention")
            rows = {mode: _held_out(material, arm, mode) for mode in MODES}
            if place is not None:
                _pair(panel, place.value, rows, style.look(index), arm)
        style.label(panel, x=voice.text(say(f"axis.{metric}")))
    axes[0].set_xscale("log")
    axes[0].xaxis.set_major_formatter(ScalarFormatter())
    axes[0].xaxis.set_minor_formatter(ScalarFormatter())
    axes[0].tick_params(axis="x", which="both", labelsize=8.5, labelrotation=45)
    axes[0].set_ylabel(voice.text(say("axis.share_of_ceiling")))
    style.legend_below(figure, axes[0])
    return figure


def arms(material: Material, voice: Voice) -> Figure | None:
    """Return every arm's difference to the reference arm on held-out tasks, in both decodings."""
    reference = material.config.agents.reference_arm if material.config.agents else ""
    names = [arm for arm in _arms(material) if arm != reference]
    figure, (axes,) = style.panels(1, 1, height=1.3 + 0.4 * len(names))
    style.zero_line(axes)
    found = False
    for index, mode in enumerate(MODES):
        rows = [(arm, _difference(material, arm, reference, mode)) for arm in names]
        known = [(arm, row, style.look(index)) for arm, row in rows if row is not None]
        if len(known) == len(names) and names:
            style.forest(axes, known, scale=100.0, shift=0.24 * (index - 0.5))
            axes.plot(
                [], [], style.look(index).marker, color=style.look(index).color, label=voice.text(say(f"word.{mode}"))
            )
            found = True
    style.label(axes, x=voice.text(say("axis.points_against", arm=reference)))
    style.legend_below(figure, axes)
    return figure if found else None


def training(material: Material, voice: Voice) -> Figure | None:
    """Return training metrics by step, a panel a metric, a line an arm: the mean over seeds, smoothed over 5 steps."""
    curves = {(metric, arm): _steps(material, arm, metric) for metric in TRAINING for arm in _arms(material)}
    if not any(curves.values()):
        return None
    figure, axes = style.panels(2, 3, height=5.2)
    for panel, metric in zip(axes, TRAINING, strict=True):
        for index, arm in enumerate(_arms(material)):
            curve, seen = curves[metric, arm], style.look(index)
            values = list(curve.values()) if metric in EXACT else style.smoothed(list(curve.values()))
            panel.plot(list(curve), values, color=seen.color, linestyle=seen.dash, linewidth=1.3, label=arm)
        style.label(panel, title=voice.text(say(f"agent_metric.{metric}")), x=voice.text(say("axis.step")))
    style.legend_below(figure, axes[0])
    return figure


def published(material: Material, voice: Voice) -> Figure | None:
    """Return the published validation rewards; estimates are hollow and belong to no line."""
    runs = {run: _printed(material, run, "val_reward") for run in PUBLISHED}
    if not any(runs.values()):
        return None
    figure, (axes,) = style.panels(1, 1, height=3.4)
    for index, (run, curve) in enumerate(runs.items()):
        seen = style.look(index)
        name = voice.text(say(f"published_run.{run}"))
        axes.plot(
            list(curve), list(curve.values()), color=seen.color, marker=seen.marker, linestyle=seen.dash, label=name
        )
    guessed = _printed(material, "nokl", "val_reward_estimated")
    if guessed:
        name = voice.text(say("published_run.estimated"))
        axes.plot(list(guessed), list(guessed.values()), "o", markerfacecolor="none", color=style.GREY, label=name)
    style.label(axes, x=voice.text(say("axis.step")), y=voice.text(say("axis.validation_reward")))
    axes.legend()
    return figure


def _arms(material: Material) -> list[str]:
    return [arm.name for arm in material.config.agents.arms] if material.config.agents else []


def _curve(material: Material, subject: str, mode: str) -> dict[int, float]:
    rows = material.evidence.where(subject, "reward", study="intention", subset="val", mode=mode)
    return dict(sorted((int(row.at), row.value) for row in rows if row.at.isdigit() and not row.how.startswith("sec")))


def _steps(material: Material, arm: str, metric: str) -> dict[int, float]:
    rows = material.evidence.where(f"arm~{arm}", metric, study="intention", subset="train")
    return dict(sorted((int(row.at), row.value) for row in rows if row.at.isdigit()))


def _arm(axes: Axes, material: Material, arm: str, mode: str, seen: style.Look) -> None:
    mean = _curve(material, f"arm~{arm}", mode)
    axes.plot(list(mean), list(mean.values()), color=seen.color, linestyle=seen.dash, linewidth=1.5, label=arm)
    seeds = (
        next((of.seeds for of in material.config.agents.arms if of.name == arm), ()) if material.config.agents else ()
    )
    for seed in seeds if len(seeds) > 1 else ():
        curve = _curve(material, f"arm~{arm}/seed~{seed}", mode)
        axes.plot(list(curve), list(curve.values()), seen.marker, color=seen.color, markersize=3, alpha=0.55)


def _held_out(material: Material, arm: str, mode: str) -> EvidenceRow | None:
    at = {"study": "intention", "subset": "test", "mode": mode, "at": "last"}
    return material.evidence.find(f"arm~{arm}", "normalised_reward", **at)


def _difference(material: Material, arm: str, reference: str, mode: str) -> EvidenceRow | None:
    at = {"study": "intention", "against": f"arm~{reference}", "subset": "test", "mode": mode, "at": "last"}
    rows = material.evidence.where(f"arm~{arm}", "normalised_reward", **at)
    return rows[0] if rows else None


def _pair(axes: Axes, place: float, rows: dict[str, EvidenceRow | None], seen: style.Look, arm: str) -> None:
    """Draw an arm's scores above each other: filled where sampled, open where greedy, joined by a line."""
    known = {mode: row for mode, row in rows.items() if row is not None}
    axes.plot([place] * len(known), [100 * row.value for row in known.values()], color=seen.color, alpha=0.4)
    for mode, row in known.items():
        low, high = style.ends(row)
        face = seen.color if mode == "sampled" else "white"
        axes.errorbar(
            [place],
            [100 * row.value],
            yerr=[[100 * low], [100 * high]],
            color=seen.color,
            marker=seen.marker,
            markerfacecolor=face,
            capsize=2,
            linestyle="",
            label=arm if mode == "sampled" else "_",
        )


def _printed(material: Material, run: str, metric: str) -> dict[int, float]:
    rows = material.evidence.where(f"published/{run}", metric, study="intention")
    return dict(sorted((int(row.at), row.value) for row in rows if row.at.isdigit()))


def _same_scale(axes: Sequence[Axes]) -> None:
    limits = [panel.get_ylim() for panel in axes]
    for panel in axes:
        panel.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
