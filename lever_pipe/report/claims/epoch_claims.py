"""Training metrics of single epochs over betas (documents 001 and 002)."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from scipy import stats

from lever_pipe.report.claims.lever_side import LeverSide
from lever_pipe.report.claims.quantities import Quantity, percent_of, printed
from lever_pipe.report.claims.texts import named
from lever_pipe.report.claims.verdicts import Check, Measured
from lever_pipe.report.tables.evidence import p_text
from lever_pipe.report.tables.text import beta_text, number, signed

Betas = tuple[float, ...]


def metric_rises_over(side: LeverSide, *, epoch: int, metric: str, betas: Betas) -> Measured:
    """Tell whether a metric rises in the claimed order of betas."""
    values = _row(side, epoch, metric, betas)
    ordered = list(values.values())
    return Measured(
        _listed(values),
        tuple(Check(after.value - before.value) for before, after in pairwise(ordered)),
    )


def metric_is_largest(side: LeverSide, *, epoch: int, metric: str, beta: float, others: Betas) -> Measured:
    """Tell whether one beta has the largest value of a metric."""
    values = _row(side, epoch, metric, (beta, *others))
    rest = max(values[other].value for other in others)
    return Measured(_listed(values), (Check(values[beta].value - rest),))


def metric_is_smallest(
    side: LeverSide, *, epoch: int, metrics: tuple[str, ...], beta: float, others: Betas
) -> Measured:
    """Tell whether one beta has the smallest value of each metric."""
    rows = {metric: _row(side, epoch, metric, (beta, *others)) for metric in metrics}
    checks = [Check(min(row[other].value for other in others) - row[beta].value) for row in rows.values()]
    return Measured("; ".join(f"{named(metric)}: {_listed(row)}" for metric, row in rows.items()), tuple(checks))


def smallest_has_smallest(side: LeverSide, *, epoch: int, metric: str, follows: str, betas: Betas) -> Measured:
    """Tell whether the beta with the smallest `metric` also has the smallest `follows`."""
    first, second = _row(side, epoch, metric, betas), _row(side, epoch, follows, betas)
    chosen = min(betas, key=lambda beta: first[beta].value)
    rest = min(second[beta].value for beta in betas if beta != chosen)
    text = f"smallest {named(metric)} at {beta_text(chosen)}; {named(follows)}: {_listed(second)}"
    return Measured(text, (Check(rest - second[chosen].value),))


def largest_kl_is_largest_update(side: LeverSide, *, epoch: int, betas: Betas) -> Measured:
    """Tell whether the beta with the largest KL also moved its parameters most."""
    sizes = {beta: side.update_size(beta, epoch) for beta in betas}
    kl = _row(side, epoch, "kl", betas)
    chosen = max(betas, key=lambda beta: kl[beta].value)
    rest = max(sizes[beta].value for beta in betas if beta != chosen)
    text = f"largest KL at {beta_text(chosen)}; relative size of the update: {_listed(sizes)}"
    return Measured(text, (Check(sizes[chosen].value - rest),))


def spread_is_below(side: LeverSide, *, epoch: int, metric: str, betas: Betas, percent: float) -> Measured:
    """Hold the range of a metric over betas, in percent of its smallest value, against a bound."""
    values = _row(side, epoch, metric, betas)
    low, high = min(values.values(), key=_size), max(values.values(), key=_size)
    spread = percent_of(high.value - low.value, low.value)
    text = f"100 x ({high} - {low}) / {low} = {number(spread, 2)}, bound {percent:g}"
    return Measured(text, (Check(percent - spread),))


def range_is(side: LeverSide, *, epoch: int, metric: str, betas: Betas, low: str, high: str) -> Measured:
    """Hold the smallest and largest value over betas against a printed range."""
    side.require_print()
    ordered = sorted(_row(side, epoch, metric, betas).values(), key=_size)
    ends = ((ordered[0], printed(low)), (ordered[-1], printed(high)))
    text = f"{ordered[0]} to {ordered[-1]}, printed {low} to {high}"
    return Measured(text, tuple(Check(seen.value - said.value, seen.rounding + said.rounding) for seen, said in ends))


def gap_in_percent_is(side: LeverSide, *, epoch: int, metric: str, left: float, right: float, claimed: str) -> Measured:
    """Hold 100 (left - right) / left against a printed percentage."""
    side.require_print()
    a, b, said = side.training(left, epoch, metric), side.training(right, epoch, metric), printed(claimed)
    gap = 100 * (a.value - b.value) / a.value
    slack = 100 * (a.rounding + b.rounding) / a.value + said.rounding
    return Measured(
        f"100 x ({a} - {b}) / {a} = {number(gap, said.digits + 1)}, printed {said}", (Check(gap - said.value, slack),)
    )


def row_is_its_own(side: LeverSide, *, epoch: int, beta: float, others: Betas, metrics: tuple[str, ...]) -> Measured:
    """Tell whether a row of training metrics differs from every other row."""
    rows = [_row(side, epoch, metric, (beta, *others)) for metric in metrics]
    row = [values[beta] for values in rows]
    gaps = {other: max(abs(values[beta].value - values[other].value) for values in rows) for other in others}
    nearest = min(gaps, key=lambda other: gaps[other])
    shown = " / ".join(map(str, row))
    text = (
        f"{beta_text(beta)}: {shown}; nearest row {beta_text(nearest)}, largest difference {number(gaps[nearest], 5)}"
    )
    return Measured(text, (Check(gaps[nearest]),))


def advantage_spread_tells_runs_apart(
    side: LeverSide, *, epochs: tuple[int, ...], betas: Betas, n_groups: int
) -> Measured:
    """Tell whether the spread of the advantages differs between betas.

    Advantages are standardised within a group, so their standard deviation is 1, or 0 where all rewards tie: its mean
    over groups is the share of groups that do not tie, a whole number over `n_groups`. The rewards of the groups are
    data, so no policy moves it.
    """
    texts, checks = [], []
    for epoch in epochs:
        row = _row(side, epoch, "std_advantage", betas)
        gap = max(spread.value for spread in row.values()) - min(spread.value for spread in row.values())
        checks.append(Check(gap - math.fsum(spread.rounding for spread in row.values())))
        for beta, spread in row.items():
            share, known = side.gradient_share(beta, epoch, n_groups)
            texts.append(
                f"epoch {epoch}, {beta_text(beta)}: Adv Std {spread}, share of groups with a gradient {share} ({known})"
            )
    return Measured("; ".join(texts), tuple(checks))


def metric_falls_faster(
    side: LeverSide, *, metric: str, faster: float, slower: float, start: int, end: int
) -> Measured:
    """Tell whether a metric falls from one epoch to another, and by more than that of another beta."""
    falls, texts, values = {}, [], side.together((faster, slower), (start, end), metric)
    for beta in (faster, slower):
        before, after = values[beta, start], values[beta, end]
        falls[beta] = before.value - after.value
        texts.append(f"{beta_text(beta)}: {before} to {after}, {signed(-falls[beta], before.digits)}")
    return Measured("; ".join(texts), (Check(min(falls[faster], falls[faster] - falls[slower])),))


def metric_lies_below(
    side: LeverSide, *, metric: str, lower: float, higher: float, epochs: tuple[int, ...]
) -> Measured:
    """Tell whether a metric of one beta lies below that of another in each epoch."""
    texts, checks, values = [], [], side.together((lower, higher), epochs, metric)
    for epoch in epochs:
        a, b = values[lower, epoch], values[higher, epoch]
        checks.append(Check(b.value - a.value))
        texts.append(f"epoch {epoch}: {beta_text(lower)} {a}, {beta_text(higher)} {b}")
    return Measured("; ".join(texts), tuple(checks))


def metric_is_larger_over_seeds(side: LeverSide, *, metric: str, epoch: int, larger: float, than: float) -> Measured:
    """Compare a metric of two betas seed by seed (paired t test)."""
    values = {beta: side.by_seed(beta, epoch, metric) for beta in (larger, than)}
    gaps = values[larger] - values[than]
    p = 1.0 if np.ptp(gaps) == 0 else float(stats.ttest_1samp(gaps, 0.0).pvalue)
    text = f"{beta_text(larger)} minus {beta_text(than)}: {signed(float(gaps.mean()), 6)} over {gaps.size} seeds"
    return Measured(f"{text}, paired t p {p_text(p)}", (Check(float(gaps.mean()), p=p),))


def equal_metrics(side: LeverSide, *, epochs: tuple[int, ...], metrics: tuple[str, ...], betas: Betas) -> Measured:
    """Tell whether metrics agree over betas."""
    texts, checks = [], []
    for epoch in epochs:
        for metric in metrics:
            row = _row(side, epoch, metric, betas)
            gap = max(v.value for v in row.values()) - min(v.value for v in row.values())
            checks.append(Check(gap, math.fsum(v.rounding for v in row.values())))
            texts.append(f"epoch {epoch}, {named(metric)}: {_listed(row)}")
    return Measured("; ".join(texts), tuple(checks))


def _row(side: LeverSide, epoch: int, metric: str, betas: Betas) -> dict[float, Quantity]:
    return {beta: value for (beta, _), value in side.together(betas, (epoch,), metric).items()}


def _listed(values: dict[float, Quantity]) -> str:
    return ", ".join(f"{beta_text(beta)} {value}" for beta, value in values.items())


def _size(value: Quantity) -> float:
    return value.value
