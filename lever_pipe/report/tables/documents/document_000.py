"""The training curves of the long runs as frames, for the claims about document 000."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from lever_pipe.report.tables.results import Results, offline_grpo, split_by


@dataclass(frozen=True, slots=True)
class Statistic:
    """One statistic of a curve and, for a minimum, the epoch of it."""

    value: float
    epoch: str = ""


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
