"""What documents 003 and 004 say about single rewards, their differences and their best values."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lever_pipe.report.claims.quantities import Quantity, percent_of, printed
from lever_pipe.report.claims.reward_runs import OVER_SEEDS_LEAD, RewardRuns
from lever_pipe.report.claims.verdicts import Check, Measured, NotTestable
from lever_pipe.report.tables.evidence import ALPHA, p_text
from lever_pipe.report.tables.intention.estimates import paired_over_seeds
from lever_pipe.report.tables.intention.published import DIFFERENCE, ESTIMATE, REWARD_DIFFERENCE, RUNS
from lever_pipe.report.tables.text import listing, number, signed
from lever_pipe.statistics.curve_tests import half_width
from lever_pipe.statistics.curves import first_reaching


def estimates_are_measurements(runs: RewardRuns, *, run: str) -> Measured:
    """Hold estimated rewards against the measured ones."""
    runs.require_print()
    estimates = runs.series(run, ESTIMATE)
    if not estimates:
        raise NotTestable("No reward is marked as an estimate.")
    errors = {step: (said.value - runs.reward(run, step).value) for step, said in estimates.items()}
    steps = np.diff([estimates[step].value for step in sorted(estimates)])
    line = "a straight line" if np.ptp(steps) < 1e-9 else "no straight line"
    listed = ", ".join(f"step {step} {said} against {runs.reward(run, step)}" for step, said in estimates.items())
    text = (
        f"{listed}; errors {signed(min(errors.values()), 3)} to {signed(max(errors.values()), 3)}, "
        f"mean size {number(float(np.mean(np.abs(list(errors.values())))), 3)}; the estimates are {line}"
    )
    checks = [Check(error, estimates[step].rounding) for step, error in errors.items()]
    return Measured(text, tuple(checks))


def differences_are_measured(runs: RewardRuns) -> Measured:
    """Hold the printed differences between the runs against the measured ones."""
    runs.require_print()
    claimed = runs.series(DIFFERENCE, REWARD_DIFFERENCE)
    if not claimed:
        raise NotTestable("No difference is printed.")
    texts, checks, turned = [], [], []
    for step, said in claimed.items():
        gap = _gap(runs, step)
        checks.append(Check(gap - said.value, said.rounding))
        texts.append(f"step {step} {signed(gap, 3)}, printed {signed(said.value, 3)}")
        turned += [step] if gap * said.value < 0 else []
    summary = f"{len(turned)} of {len(claimed)} have the wrong sign" + (f" (steps {listing(turned)})" if turned else "")
    return Measured(f"{'; '.join(texts)}; {summary}", tuple(checks))


def is_ahead_at(runs: RewardRuns, *, ahead: str, behind: str, steps: tuple[int, ...]) -> Measured:
    """Tell whether a run lies above the other at each of the steps."""
    gaps = {step: runs.reward(ahead, step).value - runs.reward(behind, step).value for step in steps}
    texts = [
        f"step {step}: {runs.reward(ahead, step)} - {runs.reward(behind, step)} = {signed(gap, 3)}"
        for step, gap in gaps.items()
    ]
    return Measured("; ".join(texts), tuple(Check(gap) for gap in gaps.values()), runs.differs())


def is_ahead_on_average(runs: RewardRuns, *, ahead: str, behind: str, steps: tuple[int, ...]) -> Measured:
    """Hold the mean difference over some steps against the noise of such a mean.

    The noise is half a 95 % t interval with the standard deviation of all paired differences.
    """
    gaps = [runs.reward(ahead, step).value - runs.reward(behind, step).value for step in steps]
    needed = half_width(runs.comparison.sd, len(gaps), len(runs.steps) - 1)
    lead = f"{runs.labels[ahead]} minus {runs.labels[behind]}, mean over steps {listing(steps)}"
    text = f"{lead}: {signed(float(np.mean(gaps)), 3)}"
    return Measured(f"{text}, noise {number(needed, 3)}", (Check(float(np.mean(gaps)), needed),), runs.differs())


def best_is(runs: RewardRuns, *, run: str, claimed: str) -> Measured:
    """Hold the best reward of a run against a printed one."""
    runs.require_print()
    said, curve = printed(claimed), runs.curve(run)
    text = f"best of `{runs.labels[run]}` {number(curve.most, 3)} at step {curve.best_step:g}, printed {said}"
    return Measured(text, (Check(curve.most - said.value, said.rounding),))


def best_difference_is(runs: RewardRuns, *, claimed: str) -> Measured:
    """Hold the difference of the best rewards against a printed one."""
    runs.require_print()
    said, best = printed(claimed), {run: runs.curve(run).most for run in RUNS}
    gap = best["kl"] - best["nokl"]
    text = f"{number(best['kl'], 3)} - {number(best['nokl'], 3)} = {signed(gap, 3)}, printed {said}"
    return Measured(text, (Check(gap - said.value, said.rounding),))


def best_difference_in_percent_is(runs: RewardRuns, *, of: str, claimed: str) -> Measured:
    """Hold the difference of the best rewards, in percent of one of them, against a printed percentage."""
    runs.require_print()
    said, best = printed(claimed), {run: runs.curve(run).most for run in RUNS}
    share = percent_of(abs(best["kl"] - best["nokl"]), best[of])
    gap = number(abs(best["kl"] - best["nokl"]), 3)
    text = f"100 x {gap} / {number(best[of], 3)} = {number(share, 2)}, printed {said}"
    return Measured(text, (Check(share - said.value, said.rounding),))


def best_is_higher(runs: RewardRuns, *, higher: str, lower: str) -> Measured:
    """Hold the difference of best values against what two flat runs of as many noisy values show."""
    gap = runs.curve(higher).most - runs.curve(lower).most
    p = runs.noise.chance_of_best_gap(abs(gap))
    lead = f"best {runs.labels[higher]} minus best {runs.labels[lower]}: {signed(gap, 3)}"
    text = f"{lead}; two flat runs differ as much with p {p_text(p)}"
    return Measured(text, (Check(gap, p=p),), runs.differs())


def difference_is_insignificant(runs: RewardRuns) -> Measured:
    """Tell whether the paired t test leaves the two curves unseparated; of ours the test over training seeds."""
    if runs.is_ours:
        return _insignificant_over_seeds(runs)
    found = runs.comparison
    return Measured(_paired_text(runs), (Check(found.p_t - ALPHA), Check(found.p_wilcoxon - ALPHA)))


def _insignificant_over_seeds(runs: RewardRuns) -> Measured:
    differences = runs.seed_differences
    runs.require_curves()
    if len(differences) < 2:
        raise NotTestable("One seed tells nothing of others.")
    found = paired_over_seeds(differences, [0.0] * len(differences))
    return Measured(
        f"{OVER_SEEDS_LEAD} {runs.labels['kl']} minus {runs.labels['nokl']}, mean over {len(differences)} seeds: "
        f"{signed(found.value, 3)} ({_direction(differences)}), {found.test}, p {p_text(found.p)}",
        (Check(found.p - ALPHA),),
    )


def _direction(differences: Sequence[float]) -> str:
    """Return which way most seeds go: `lower in 3 of 3`."""
    lower, higher = (sum(sign * value < 0 for value in differences) for sign in (1, -1))
    word, count = ("higher", higher) if higher > lower else ("lower", lower)
    return f"{word} in {count} of {len(differences)}"


def rewards_are_close(runs: RewardRuns, *, margin: float) -> Measured:
    """Hold the mean paired difference and its 95 % interval against a margin."""
    found = runs.comparison
    check = Check(found.mean, (found.high - found.low) / 2, margin=margin)
    return Measured(f"{_paired_text(runs)}; margin {margin:g}", (check,), runs.differs())


def difference_has_one_cause(runs: RewardRuns, *, cause: tuple[str, ...]) -> Measured:
    """Compare the curves; `cause` is judged by the settings that differ beside the named ones."""
    found = runs.comparison
    return Measured(_paired_text(runs), (Check(abs(found.mean), p=found.p_t),), runs.differs(beside=cause))


def best_comes_earlier(runs: RewardRuns, *, earlier: str, later: str, claimed: str) -> Measured:
    """Hold the difference of the best steps against the spacing of the evaluations."""
    steps = {run: runs.curve(run).best_step for run in (earlier, later)}
    gap, spacing = steps[later] - steps[earlier], float(np.diff(runs.steps).max())
    text = f"best at step {steps[earlier]:g} against {steps[later]:g}, {gap:g} steps apart"
    text += "" if runs.is_ours else f", printed {claimed}"
    return Measured(f"{text}; evaluations lie {spacing:g} steps apart", (Check(gap, spacing),))


def reaches_thresholds_sooner(runs: RewardRuns, *, sooner: str, than: str, thresholds: tuple[float, ...]) -> Measured:
    """Compare the first steps at which two runs reach each threshold; one that neither reaches is left out."""
    texts, checks = [], []
    for threshold in thresholds:
        first, second = (_first(runs, run, threshold) for run in (sooner, than))
        if math.isinf(min(first, second)):
            continue
        checks.append(Check(1.0 if first < second else -1.0))
        texts.append(f"{threshold:g}: {_step(first)} against {_step(second)}")
    if not checks:
        raise NotTestable("No run reaches a threshold.")
    lead = f"first step that reaches each reward, {runs.labels[sooner]} against {runs.labels[than]}"
    return Measured(f"{lead}: {'; '.join(texts)}", tuple(checks))


def reaches_threshold_in_less_time(runs: RewardRuns, *, sooner: str, than: str, threshold: float) -> Measured:
    """Compare the seconds that two runs take to a threshold, at the middle of their printed seconds a step."""
    seconds = {}
    texts = []
    for run in (sooner, than):
        step = _first(runs, run, threshold)
        if math.isinf(step):
            raise NotTestable(f"{runs.subject(run)} never reaches {threshold:g}.")
        each = middle(runs, run, "time_per_step_s")
        seconds[run] = step * each
        texts.append(f"{runs.labels[run]}: {step:g} steps x {number(each, 1)} s = {number(seconds[run], 0)} s")
    return Measured(f"reward {threshold:g}: {'; '.join(texts)}", (Check(seconds[than] - seconds[sooner]),))


def middle(runs: RewardRuns, run: str, metric: str) -> float:
    """Return the middle of a printed range."""
    low, high = ends(runs, run, metric)
    return (low.value + high.value) / 2


def ends(runs: RewardRuns, run: str, metric: str) -> tuple[Quantity, Quantity]:
    """Return the ends of a printed range."""
    return runs.fact(run, f"{metric}_min"), runs.fact(run, f"{metric}_max")


def _gap(runs: RewardRuns, step: int) -> float:
    return runs.reward("kl", step).value - runs.reward("nokl", step).value


def _paired_text(runs: RewardRuns) -> str:
    found = runs.comparison
    return (
        f"{runs.labels['kl']} minus {runs.labels['nokl']}, mean over {len(runs.steps)} evaluations: "
        f"{signed(found.mean, 3)} [{number(found.low, 3)}, {number(found.high, 3)}], paired t p {p_text(found.p_t)}, "
        f"Wilcoxon p {p_text(found.p_wilcoxon)}, above at {found.above} of {found.above + found.below} steps"
        f"{runs.p_is_of_runs}"
    )


def _first(runs: RewardRuns, run: str, threshold: float) -> float:
    found = first_reaching(runs.steps, runs.rewards(run), threshold)
    return math.inf if found is None else found


def _step(step: float) -> str:
    return "never" if math.isinf(step) else f"{step:g}"
