"""Document 000: the training curves of two long runs, as seven tables of statistics over epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from lever_pipe.report.tables.lineage import published_key
from lever_pipe.report.tables.published import CURVES, Key, Lineage, Published, PublishedNumber
from lever_pipe.report.tables.results import Results, keep, offline_grpo, split_by
from lever_pipe.report.tables.table import Table, beside, frame_of, groups_of
from lever_pipe.report.tables.text import beta_text, difference, listing, number, sentences, signed, span

BETAS = (0.12, 0.15)
LAST_PUBLISHED_EPOCH = 50


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of the document: our name, the published name, and the rows that the document prints."""

    metric: str
    published: str
    title: str
    digits: int
    rows: tuple[str, ...] = ("Mean", "First", "Last")


CURVES_OF_DOCUMENT = (
    Curve("kl", "kl", "KL divergence", 6, ("Mean", "First", "Last", "Change")),
    Curve("kl_loss", "kl_loss", "KL loss", 8),
    Curve("ppo_loss", "ppo_loss", "PPO loss", 8),
    Curve("loss", "grpo_loss", "GRPO loss", 8),
    Curve("val_loss", "val_loss", "Validation loss", 6, ("Mean", "First", "Last", "Minimum")),
    Curve("mean_ratio", "mean_ratio", "Mean ratio", 6),
    Curve("mean_advantage", "mean_advantage", "Mean advantage", 8),
)


@dataclass(frozen=True, slots=True)
class Statistic:
    """One statistic of a curve and, for a minimum, the epoch of it."""

    value: float
    epoch: str = ""


def tables(results: Results, published: Published) -> list[Table]:
    """Return the seven tables, in the document's order."""
    runs = long_runs(results)
    betas, missing = keep(BETAS, sorted(runs), "KL_BETA")
    return [_table(curve, results, {b: runs[b] for b in betas}, published, missing) for curve in CURVES_OF_DOCUMENT]


def long_runs(results: Results) -> dict[float, pd.DataFrame]:
    """Return for each beta the training rows of its longest runs; shorter runs of the beta are left out.

    Only betas whose runs are as long as the longest of all are returned, because means over other spans of
    epochs do not compare.
    """
    rows = offline_grpo(results.training)
    rows = rows[rows["base_rce_epoch"] == results.base]
    if rows.empty:
        return {}
    length = rows.groupby(["kl_beta", "seed"])["epoch"].transform("max")
    rows = rows[length == rows["epoch"].max()]
    return {float(beta): group for beta, group in split_by(rows, ["kl_beta"])}


def curve_of(run: pd.DataFrame, metric: str) -> pd.Series[float]:
    """Return a metric by epoch, mean over the seeds of the run."""
    rows = run[run["metric"] == metric]
    curve: pd.Series[float] = rows.groupby("epoch")["value"].mean().sort_index()
    return curve


def statistics_of(curve: pd.Series[float]) -> dict[str, Statistic]:
    """Return mean, first, last, change in percent of the first, and minimum of a curve by epoch."""
    if curve.empty:
        return {}
    first, last = float(curve.iloc[0]), float(curve.iloc[-1])
    found = {"Mean": Statistic(float(curve.mean())), "First": Statistic(first), "Last": Statistic(last)}
    if first:
        found["Change"] = Statistic(100 * (last - first) / first)
    return {**found, "Minimum": Statistic(float(curve.min()), str(curve.idxmin()))}


def _table(
    curve: Curve, results: Results, runs: Mapping[float, pd.DataFrame], published: Published, missing: str
) -> Table:
    lineage = Lineage()
    ours = {beta: statistics_of(curve_of(run, curve.metric)) for beta, run in runs.items()}
    theirs = {beta: _published_statistics(curve, beta, published, lineage) for beta in runs}
    rows: list[dict[str, str]] = []
    for name in curve.rows:
        rows += beside(
            {"Statistic": name},
            ours=_cells(name, ours, curve.digits),
            published=_cells(name, theirs, curve.digits),
            groups=_groups(results, runs),
        )
    columns = ["Statistic", "Source", *(f"KL_BETA={beta_text(beta)}" for beta in runs), "Difference"]
    return Table(
        id=f"000-{curve.metric}",
        document="000",
        title=f"{curve.title} over the epochs of the training-curve runs",
        caption=sentences(_spans(runs), missing, _explained(curve, runs)),
        frame=frame_of(rows, columns if len(runs) == 2 else columns[:-1]),
        notes=lineage.notes(),
        factor="kl_beta",
        groups=groups_of(rows),
    )


def _groups(results: Results, runs: Mapping[float, pd.DataFrame]) -> tuple[str, str]:
    """Return the names of our last epochs and of the published ones, whose columns one row compares."""
    ours = [results.group(beta, int(run["epoch"].max())) for beta, run in runs.items()]
    theirs = [published_key(beta, LAST_PUBLISHED_EPOCH, stage="grpo_balanced") for beta in runs if beta in BETAS]
    return " ".join(ours), " ".join(theirs)


def _cells(name: str, by_beta: Mapping[float, Mapping[str, Statistic]], digits: int) -> dict[str, str]:
    found = {beta: statistics[name] for beta, statistics in by_beta.items() if name in statistics}
    show = _percent if name == "Change" else lambda value: number(value, digits)
    cells = {
        f"KL_BETA={beta_text(beta)}": show(s.value) + (f" (epoch {s.epoch})" if s.epoch else "")
        for beta, s in found.items()
    }
    if len(found) == 2:
        left, right = (s.value for s in found.values())
        cells["Difference"] = show(difference(left, right))
    return cells


def _percent(value: float | None) -> str:
    text = signed(value, 2)
    return f"{text}%" if text else text


def _published_statistics(curve: Curve, beta: float, published: Published, lineage: Lineage) -> dict[str, Statistic]:
    names = {"Mean": "mean(1-50)", "First": "1", "Last": str(LAST_PUBLISHED_EPOCH), "Minimum": "minimum"}
    found: dict[str, PublishedNumber] = {}
    for name, epoch in names.items():
        key = Key("grpo_balanced", beta, epoch, curve.published)
        seen = published.find(key, (CURVES,))
        if seen and name in curve.rows:
            lineage.add(key, seen)
            found[name] = seen
    statistics = {name: Statistic(n.value, n.epoch if name == "Minimum" else "") for name, n in found.items()}
    if "First" in found and "Last" in found and found["First"].value:
        first, last = found["First"].value, found["Last"].value
        statistics["Change"] = Statistic(100 * (last - first) / first)
    return statistics


def _spans(runs: Mapping[float, pd.DataFrame]) -> str:
    if not runs:
        return "No GRPO epoch was trained, so there is nothing to show."
    described = []
    for beta, run in runs.items():
        epochs, seeds = span([int(e) for e in run["epoch"].unique()]), sorted(run["seed"].unique())
        described.append(f"{beta_text(beta)} epochs {epochs}, seed{'s' * (len(seeds) > 1)} {listing(seeds)}")
    return f"Ours: {'; '.join(described)}. Published: epochs 1-{LAST_PUBLISHED_EPOCH}, one run a beta."


def _explained(curve: Curve, runs: Mapping[float, pd.DataFrame]) -> str:
    parts = []
    if len(runs) == 2:
        parts.append("Difference: left minus right, recomputed from the printed numbers where published.")
    if "Change" in curve.rows:
        parts.append("Change: last against first, in percent of the first.")
    if curve.metric == "kl":
        parts.append("KL is the k3 penalty; the published runs log it with dropout in the policy alone.")
    return " ".join(parts)
