"""What documents 003 and 004 say about the steadiness of the two runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from lever_pipe.report.claims.quantities import Quantity, percent_of
from lever_pipe.report.claims.reward_runs import FEWEST, RewardRuns
from lever_pipe.report.claims.texts import named
from lever_pipe.report.claims.verdicts import Check, Measured, NotTestable
from lever_pipe.report.tables.evidence import p_text
from lever_pipe.report.tables.text import digits_text, number, signed
from lever_pipe.statistics.curve_tests import f_test


def changes_in_percent_are(runs: RewardRuns, *, run: str) -> Measured:
    """Hold the printed changes from evaluation to evaluation against the rewards."""
    runs.require_print()
    claimed = runs.series(run, "val_reward_change_pct")
    if not claimed:
        raise NotTestable("No change is printed.")
    texts, checks = [], []
    for step, said in claimed.items():
        change = runs.change(run, step)
        change = percent_of(change, runs.reward(run, step).value - change)
        checks.append(Check(change - said.value, said.rounding))
        texts.append(f"step {step} {signed(change, 1)}, printed {said}")
    return Measured("; ".join(texts), tuple(checks))


def largest_change_is(runs: RewardRuns, *, run: str) -> Measured:
    """Hold the printed largest change against the largest of all."""
    runs.require_print()
    said = runs.fact(run, "max_abs_change_pct")
    changes = 100 * np.array(runs.curve(run).relative_changes)
    at = int(np.argmax(np.abs(changes)))
    span = f"from step {runs.steps[at]:g} to {runs.steps[at + 1]:g}"
    text = f"largest {signed(float(changes[at]), 1)} {span}, printed {said}"
    return Measured(text, (Check(float(np.abs(changes[at])) - said.value, said.rounding),))


def changes_less(runs: RewardRuns, *, steadier: str, than: str) -> Measured:
    """Compare the spread of the changes from evaluation to evaluation."""
    curves, found = {run: runs.curve(run) for run in (steadier, than)}, runs.comparison
    spread = {run: curve.sd_of_changes for run, curve in curves.items()}
    texts = [f"sd of change {runs.labels[run]} {number(value, 4)}" for run, value in spread.items()]
    tests = f"F p {p_text(found.p_f_of_changes)}, Levene p {p_text(found.p_levene_of_changes)}"
    text = f"{', '.join(texts)}; {tests}, label swaps p {p_text(found.p_swap_of_changes)}"
    return Measured(text, (Check(spread[than] - spread[steadier], p=found.p_f_of_changes),), runs.differs())


def moves_less(runs: RewardRuns, *, smoother: str, than: str) -> Measured:
    """Judge smoothness as `changes_less` and show the other statistics, which do not all point one way."""
    one, other, judged = runs.curve(smoother), runs.curve(than), changes_less(runs, steadier=smoother, than=than)
    shown = {
        "rms of change": (one.rms_of_changes, other.rms_of_changes, 4),
        "residual sd": (one.residual_sd, other.residual_sd, 4),
        "drawdown": (one.drawdown, other.drawdown, 3),
        "total variation": (one.total_variation, other.total_variation, 3),
    }
    texts = [
        f"{name} {runs.labels[smoother]} {number(a, digits)}, {runs.labels[than]} {number(b, digits)}"
        for name, (a, b, digits) in shown.items()
    ]
    turns = f"turns {one.sign_changes} against {other.sign_changes}"
    return replace(judged, numbers="; ".join((judged.numbers, *texts, turns)))


def window_varies_less(runs: RewardRuns, *, steadier: str, than: str, first: int, last: int) -> Measured:
    """Compare the spread of the rewards within a window of steps, which was chosen afterwards."""
    inside = (runs.steps >= first) & (runs.steps <= last)
    rewards = {run: runs.rewards(run)[inside] for run in (steadier, than)}
    if not all(np.unique(values).size > 1 for values in rewards.values()):
        raise NotTestable(f"Fewer than two rewards differ between steps {first} and {last}.")
    p = f_test(rewards[steadier], rewards[than])
    ranges = {run: float(np.ptp(values)) for run, values in rewards.items()}
    texts = [f"range of {runs.labels[run]} {number(value, 3)}" for run, value in ranges.items()]
    text = f"steps {first} to {last}: {', '.join(texts)}; F p {p_text(p)}"
    return Measured(text, (Check(ranges[than] - ranges[steadier], p=p),), runs.differs())


def falls_less(runs: RewardRuns, *, steadier: str, than: str, beside: tuple[str, ...]) -> Measured:
    """Compare drawdowns; p is how often a flat run of as many noisy values falls as far as the larger one.

    `cause` is judged by the settings that differ beside the named ones.
    """
    one, other = runs.curve(steadier), runs.curve(than)
    chances = [runs.noise.chance_of_drawdown(curve.drawdown) for curve in (one, other)]
    text = (
        f"drawdown {runs.labels[steadier]} {number(one.drawdown, 3)}, {runs.labels[than]} {number(other.drawdown, 3)}; "
        f"a flat run falls {number(runs.noise.expected_drawdown, 2)} on average, as far as these with p "
        f"{p_text(chances[0])} and {p_text(chances[1])}"
    )
    return Measured(text, (Check(other.drawdown - one.drawdown, p=min(chances)),), runs.differs(beside=beside))


def falls_more_sharply(runs: RewardRuns, *, run: str, step: int, than: str) -> Measured:
    """Hold a fall at one step against the largest fall of the other run."""
    own = runs.change(run, step)
    other = dict(zip(map(int, runs.steps[1:]), runs.curve(than).changes, strict=True))
    at = min(other, key=lambda key: other[key])
    text = (
        f"{runs.labels[run]} at step {step}: {signed(own, 3)}; {runs.labels[than]} at step {at}: {signed(other[at], 3)}"
    )
    return Measured(text, (Check(other[at] - own),))


def metric_rises(runs: RewardRuns, *, run: str, metric: str) -> Measured:
    """Tell whether the printed values of a metric rise from step to step."""
    series = runs.series(run, metric)
    if len(series) < 2:
        raise runs.lacking(f"Fewer than two values of {named(metric)} are printed.")
    values = [series[step] for step in sorted(series)]
    share = percent_of(values[-1].value - values[0].value, values[0].value)
    texts = [f"step {step} {series[step]}" for step in sorted(series)]
    checks = [Check(after.value - before.value) for before, after in pairwise(values)]
    return Measured(f"{', '.join(texts)}; {signed(share, 1)} % in all", tuple(checks))


def growth_slows(runs: RewardRuns, *, run: str, metric: str) -> Measured:
    """Compare the growth a step from the middle value to the last with that from the first to the middle one."""
    series = sorted(runs.series(run, metric).items())
    if len(series) < 3:
        raise runs.lacking(f"Fewer than three values of {named(metric)} are printed.")
    (a, first), (b, second), (c, third) = series[0], series[len(series) // 2], series[-1]
    before, after = (second.value - first.value) / (b - a), (third.value - second.value) / (c - b)
    texts = [f"steps {a} to {b}: {number(before, 4)} a step", f"steps {b} to {c}: {number(after, 4)} a step"]
    texts += [f"{number(third.value / first.value, 0)} times the first value"] if first.value else []
    return Measured("; ".join(texts), (Check(before - after),))


def varies_less(runs: RewardRuns, *, metric: str, steadier: str, than: str) -> Measured:
    """Compare the relative change of a metric in two runs over the same steps; of many values their spread (F test)."""
    series = {run: runs.series(run, metric) for run in (steadier, than)}
    for run, values in series.items():
        if len(values) < 2:
            raise runs.lacking(
                f"Printed of {named(metric)} in `{runs.labels[run]}`: {_listed(values)}. A spread needs two."
            )
    steps = {run: sorted(values) for run, values in series.items()}
    if steps[steadier] != steps[than]:
        spans = "; ".join(f"{runs.labels[run]}: steps {at[0]} to {at[-1]}" for run, at in steps.items())
        raise runs.lacking(f"The printed values of {named(metric)} cover different steps ({spans}).")
    if min(map(len, series.values())) >= FEWEST:
        return _spreads_less(runs, {run: [value.value for value in of.values()] for run, of in series.items()})
    ends = {run: (of[min(of)].value, of[max(of)].value) for run, of in series.items()}
    shares = {run: abs(percent_of(last - first, first)) for run, (first, last) in ends.items()}
    text = "; ".join(f"{runs.labels[run]} {number(share, 1)} %" for run, share in shares.items())
    return Measured(text, (Check(shares[than] - shares[steadier]),), runs.differs())


def _spreads_less(runs: RewardRuns, values: Mapping[str, Sequence[float]]) -> Measured:
    """Return the comparison of two spreads, the steadier run first."""
    spread = {run: float(np.std(of, ddof=1)) for run, of in values.items()}
    p = f_test(*values.values())
    texts = [f"sd over {len(of)} steps of {runs.labels[run]} {digits_text(spread[run])}" for run, of in values.items()]
    steadier, than = spread.values()
    return Measured(f"{'; '.join(texts)}; F p {p_text(p)}", (Check(than - steadier, p=p),), runs.differs())


def _listed(values: Mapping[int, Quantity]) -> str:
    return ", ".join(f"step {step} {value}" for step, value in values.items()) or "nothing"
