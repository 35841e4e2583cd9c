"""What documents 003 and 004 say: rewards, their steadiness, steps, lengths and drift of the two runs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import pairwise

import numpy as np

from lever_pipe.report.cells import Cell, Name, say
from lever_pipe.report.claims.quantities import (
    Part,
    Quantity,
    average,
    held,
    labelled,
    listed,
    measures,
    named,
    p_value,
    percent,
    printed,
    t_p,
)
from lever_pipe.report.claims.reward_runs import DIFFERENCE, FEWEST, KL, NO_KL, RUNS, VALIDATED, RewardRuns
from lever_pipe.report.claims.verdicts import ALPHA, Check, Measured, lacking, require_print
from lever_pipe.statistics.curve_tests import drifting_t_p, f_test, half_width
from lever_pipe.statistics.curves import first_reaching

TOKENS, RESPONSE = "mean_sequence_length_tokens_as_labelled", "response_length_tokens"
SECONDS, SPEED = "time_per_step_s", "throughput_tokens_per_s"
STARTED = re.compile(r"run-(\d{8}_\d{6})-")
Steps = tuple[int, ...]
Causes = tuple[str, ...]


def estimates_are_measurements(runs: RewardRuns, *, run: str) -> Measured:
    """Hold estimated rewards against the measured ones."""
    require_print(runs)
    estimates = runs.series(run, "val_reward_estimated")
    if not estimates:
        raise lacking("nothing_printed")
    parts: list[Part] = []
    for step, said in estimates.items():
        seen = runs.reward(run, step)
        told = say("claims.estimated", said=said.cell, value=seen.cell)
        parts.append((Check(said.value - seen.value, said.rounding), labelled(_step(step), told)))
    return measures(parts)


def differences_are_measured(runs: RewardRuns) -> Measured:
    """Hold the printed differences between the runs against the measured ones."""
    require_print(runs)
    parts: list[Part] = []
    for step, said in runs.series(DIFFERENCE, "val_reward_diff").items():
        gap = runs.reward(KL, step) - runs.reward(NO_KL, step)
        parts.append(_as_printed(gap, said, step))
    if not parts:
        raise lacking("nothing_printed")
    return measures(parts)


def is_ahead_at(runs: RewardRuns, *, ahead: str, behind: str, steps: Steps) -> Measured:
    """Tell whether a run lies above the other at each of the steps."""
    gaps = {step: runs.reward(ahead, step) - runs.reward(behind, step) for step in steps}
    parts: list[Part] = [
        (Check(gap.value), labelled(_step(step), say("claims.result", terms=gap.equation, value=_result(gap))))
        for step, gap in gaps.items()
    ]
    return measures(parts, differs=runs.differs())


def is_ahead_on_average(runs: RewardRuns, *, ahead: str, behind: str, steps: Steps) -> Measured:
    """Hold the mean difference over some steps against the noise of such a mean.

    The noise is half a 95 % t interval with the standard deviation of all paired differences.
    """
    gaps = [runs.reward(ahead, step) - runs.reward(behind, step) for step in steps]
    needed = half_width(runs.comparison.sd, len(gaps), len(runs.steps) - 1)
    mean = Quantity(average(gaps).value, 3, of=average(gaps).of, how="mean difference", sign=True)
    noise = named(noise=runs.of(needed, 3, "half of the t interval"))
    told = labelled(_minus(runs, ahead, behind), mean.cell)
    return measures([(Check(mean.value, needed), told)], noise, differs=runs.differs())


def best_is(runs: RewardRuns, *, run: str, claimed: str) -> Measured:
    """Hold the best reward of a run against a printed one."""
    require_print(runs)
    best = _best(runs, run)
    told = say("claims.is", value=best.cell, said=Name(claimed))
    return measures(
        [(Check(best.value - float(claimed), printed(claimed).rounding), labelled(_step(_best_step(runs, run)), told))]
    )


def best_difference_is(runs: RewardRuns, *, claimed: str) -> Measured:
    """Hold the difference of the best rewards against a printed one."""
    require_print(runs)
    return measures([held(_exact(_best(runs, KL) - _best(runs, NO_KL)), printed(claimed))])


def best_difference_in_percent_is(runs: RewardRuns, *, of: str, claimed: str) -> Measured:
    """Hold the difference of the best rewards, in percent of one of them, against a printed percentage."""
    require_print(runs)
    low, high = sorted((_best(runs, run) for run in RUNS), key=lambda best: best.value)
    return measures([held(_exact(percent(high - low, _best(runs, of))), printed(claimed), digits=2)])


def best_is_higher(runs: RewardRuns, *, higher: str, lower: str) -> Measured:
    """Hold the difference of best values against what two flat runs of as many noisy values show."""
    gap = runs.curve(higher).most - runs.curve(lower).most
    p = runs.noise.chance_of_best_gap(abs(gap))
    told = labelled(
        say("claims.best_of", which=_minus(runs, higher, lower)), runs.of(gap, 3, "best minus best", sign=True).cell
    )
    return measures([(Check(gap, p=p), told)], p_value("flat", p), differs=runs.differs())


def difference_is_insignificant(runs: RewardRuns) -> Measured:
    """Tell whether a paired t test leaves the two curves unseparated; of ours the test over training seeds."""
    if runs.is_print:
        found = runs.comparison
        return measures([(Check(p - ALPHA), None) for p in (found.p_t, found.p_wilcoxon)], *_paired(runs))
    if len(runs.seeds) < 2:
        raise lacking("one_seed")
    gaps, p = runs.seed_differences, t_p(runs.seed_differences)
    mean = runs.of(float(np.mean(gaps)), 3, "mean difference", sign=True)
    return measures([(Check(p - ALPHA), labelled(_minus(runs, KL, NO_KL), mean.cell))], p_value("over_seeds", p))


def rewards_are_close(runs: RewardRuns, *, margin: float) -> Measured:
    """Hold the mean paired difference and its 95 % interval against a margin."""
    found = runs.comparison
    check = Check(found.mean, (found.high - found.low) / 2, margin=margin)
    stated = listed([(say("claims.name.margin"), Name(f"{margin:g}"))])
    return measures([(check, None)], *_paired(runs), stated, differs=runs.differs())


def difference_has_one_cause(runs: RewardRuns, *, cause: Causes) -> Measured:
    """Compare the curves; `cause` is judged by the settings that differ beside the named ones."""
    found = runs.comparison
    check = Check(abs(found.mean), p=found.p_t)
    return measures([(check, None)], *_paired(runs), differs=runs.differs(beside=cause))


def best_comes_earlier(runs: RewardRuns, *, earlier: str, later: str) -> Measured:
    """Hold the difference of the best steps against the spacing of the evaluations."""
    steps = {run: _best_step(runs, run) for run in (earlier, later)}
    spacing = float(np.diff(runs.steps).max())
    shown = {runs.label(run): runs.of(step, 0, "step of the best reward", run) for run, step in steps.items()}
    gap = steps[later] - steps[earlier]
    return measures([(Check(gap, spacing), labelled(say("claims.name.best_step"), listed(shown)))])


def reaches_thresholds_sooner(runs: RewardRuns, *, sooner: str, than: str, thresholds: tuple[float, ...]) -> Measured:
    """Compare the first steps at which two runs reach each threshold that either reaches, on average.

    A run that does not reach one does so at the earliest one evaluation after its last.
    """
    ends = float(runs.steps[-1] + np.diff(runs.steps)[-1])
    gaps, told = [], {}
    for threshold in thresholds:
        firsts = [first_reaching(runs.steps, runs.rewards(run), threshold) for run in (sooner, than)]
        if firsts == [None, None]:
            continue
        first, second = (ends if step is None else step for step in firsts)
        gaps.append(second - first)
        cells = [_reached(runs, step, run) for step, run in zip(firsts, (sooner, than), strict=True)]
        told[Name(f"{threshold:g}")] = say("claims.against", first=cells[0], second=cells[1])
    if not gaps:
        raise lacking("no_threshold")
    what = say("claims.thresholds", first=runs.label(sooner), second=runs.label(than))
    return measures([(Check(float(np.mean(gaps))), labelled(what, listed(told)))])


def reaches_threshold_in_less_time(runs: RewardRuns, *, sooner: str, than: str, threshold: float) -> Measured:
    """Compare the seconds that two runs take to a threshold, at the middle of their printed seconds a step."""
    seconds, told = {}, {}
    for run in (sooner, than):
        step = first_reaching(runs.steps, runs.rewards(run), threshold)
        if step is None:
            raise lacking("never_reaches", run=runs.label(run), threshold=threshold)
        low, high = _ends(runs, run, SECONDS)
        seconds[run] = step * (low.value + high.value) / 2
        told[runs.label(run)] = Quantity(seconds[run], 0, of=(*low.of, *high.of), how=f"middle x {step:g} steps")
    told_of = labelled(say("claims.name.seconds"), listed(told))
    return measures([(Check(seconds[than] - seconds[sooner]), told_of)])


def changes_in_percent_are(runs: RewardRuns, *, run: str) -> Measured:
    """Hold the printed changes from evaluation to evaluation against the rewards."""
    require_print(runs)
    parts: list[Part] = []
    for step, said in runs.series(run, "val_reward_change_pct").items():
        change = runs.change(run, step)
        before = runs.reward(run, step).value - change.value
        parts.append(_as_printed(percent(change, Quantity(before, 3, of=change.of, how="before"), 1), said, step))
    if not parts:
        raise lacking("nothing_printed")
    return measures(parts)


def largest_change_is(runs: RewardRuns, *, run: str) -> Measured:
    """Hold the printed largest change against the largest of all."""
    require_print(runs)
    said = runs.fact(run, "max_abs_change_pct")
    changes = 100 * np.array(runs.curve(run).relative_changes)
    at = int(np.argmax(np.abs(changes)))
    largest = runs.of(float(abs(changes[at])), 1, "largest change in percent", run)
    told = say("claims.is", value=largest.cell, said=said.cell)
    what = say("claims.from_to", first=int(runs.steps[at]), last=int(runs.steps[at + 1]))
    return measures([(Check(largest.value - said.value, said.rounding), labelled(what, told))])


def changes_less(runs: RewardRuns, *, steadier: str, than: str) -> Measured:
    """Compare the spread of the changes from evaluation to evaluation."""
    spread = {run: runs.curve(run).sd_of_changes for run in (steadier, than)}
    shown = {runs.label(run): runs.of(value, 4, "sd of changes", run) for run, value in spread.items()}
    p = runs.comparison.p_f_of_changes
    check = Check(spread[than] - spread[steadier], p=p)
    told = labelled(say("claims.name.sd_of_changes"), listed(shown))
    return measures([(check, told)], p_value("f", p), differs=runs.differs())


def window_varies_less(runs: RewardRuns, *, steadier: str, than: str, first: int, last: int) -> Measured:
    """Compare the spread of the rewards within a window of steps, which was chosen afterwards."""
    inside = (runs.steps >= first) & (runs.steps <= last)
    rewards = {run: runs.rewards(run)[inside] for run in (steadier, than)}
    if not all(np.unique(values).size > 1 for values in rewards.values()):
        raise lacking("window_flat", first=first, last=last)
    p = f_test(rewards[steadier], rewards[than])
    ranges = {run: float(np.ptp(values)) for run, values in rewards.items()}
    shown = {runs.label(run): runs.of(value, 3, "range", run) for run, value in ranges.items()}
    told = labelled(say("claims.name.range"), listed(shown))
    return measures([(Check(ranges[than] - ranges[steadier], p=p), told)], p_value("f", p), differs=runs.differs())


def falls_less(runs: RewardRuns, *, steadier: str, than: str, beside: Causes) -> Measured:
    """Compare drawdowns; p is how often a flat run of as many noisy values falls as far as the larger one.

    `cause` is judged by the settings that differ beside the named ones.
    """
    falls = {run: runs.curve(run).drawdown for run in (steadier, than)}
    p = min(runs.noise.chance_of_drawdown(fall) for fall in falls.values())
    shown = {runs.label(run): runs.of(fall, 3, "largest fall", run) for run, fall in falls.items()}
    told = labelled(say("claims.name.drawdown"), listed(shown))
    check = Check(falls[than] - falls[steadier], p=p)
    return measures([(check, told)], p_value("flat", p), differs=runs.differs(beside=beside))


def falls_more_sharply(runs: RewardRuns, *, run: str, step: int, than: str) -> Measured:
    """Hold a fall at one step against the largest fall of the other run."""
    own = runs.change(run, step)
    changes = dict(zip(map(int, runs.steps[1:]), runs.curve(than).changes, strict=True))
    at = min(changes, key=lambda key: changes[key])
    other = runs.of(changes[at], 3, "largest fall", than, sign=True)
    cells = {(run, step): _result(own), (than, at): other.cell}
    told = listed({say("claims.run_at", run=runs.label(name), step=when): cell for (name, when), cell in cells.items()})
    return measures([(Check(changes[at] - own.value), told)])


def metric_rises(runs: RewardRuns, *, run: str, metric: str) -> Measured:
    """Tell whether the values of a metric rise from step to step."""
    series = runs.series(run, metric)
    if len(series) < 2:
        raise runs.lacking("nothing_printed")
    values = list(series.values())
    parts: list[Part] = [(Check(after.value - before.value), None) for before, after in pairwise(values)]
    return measures(parts, _by_step({step: series[step] for step in (min(series), max(series))}))


def growth_slows(runs: RewardRuns, *, run: str, metric: str) -> Measured:
    """Compare the growth a step from the middle value to the last with that from the first to the middle one."""
    series = sorted(runs.series(run, metric).items())
    if len(series) < 3:
        raise runs.lacking("nothing_printed")
    places = (series[0], series[len(series) // 2], series[-1])
    rates = []
    for (a, first), (b, second) in pairwise(places):
        keys = (*first.of, *second.of)
        rates.append((a, b, Quantity((second.value - first.value) / (b - a), 4, of=keys, how="difference a step")))
    shown = {say("claims.from_to", first=a, last=b): say("claims.a_step", value=rate.cell) for a, b, rate in rates}
    return measures([(Check(rates[0][2].value - rates[1][2].value), listed(shown))])


def varies_less(runs: RewardRuns, *, metric: str, steadier: str, than: str) -> Measured:
    """Compare the spread of a metric in two runs over the same steps (F test); the end points of a few printed ones."""
    series = {run: runs.series(run, metric) for run in (steadier, than)}
    if min(map(len, series.values())) < 2:
        raise runs.lacking("no_spread", what=say(f"claims.metric.{metric}"))
    if list(series[steadier]) != list(series[than]):
        raise runs.lacking("other_steps", what=say(f"claims.metric.{metric}"))
    if min(map(len, series.values())) < FEWEST:
        raise runs.lacking("no_spread", what=say(f"claims.metric.{metric}"))
    values = {run: [each.value for each in of.values()] for run, of in series.items()}
    spread = {run: float(np.std(of, ddof=1)) for run, of in values.items()}
    p = f_test(values[steadier], values[than])
    shown = {
        runs.label(run): Quantity(value, 4, of=average(list(series[run].values())).of, how="sd over steps")
        for run, value in spread.items()
    }
    told = labelled(say("claims.name.sd_over_steps"), listed(shown))
    check = Check(spread[than] - spread[steadier], p=p)
    return measures([(check, told)], p_value("f", p), differs=runs.differs())


def steps_were_evaluated(runs: RewardRuns, *, run: str) -> Measured:
    """Hold the evaluations that are shown against those that the stated steps would hold."""
    require_print(runs)
    stated, spacing = runs.fact(run, "total_steps_claimed"), float(runs.steps[1] - runs.steps[0])
    shown, wanted = len(runs.steps), math.floor(stated.value / spacing)
    cells = {
        "shown": runs.of(shown, 0, "number of evaluations").cell,
        "wanted": Quantity(wanted, 0, of=stated.of, how=f"steps / {spacing:g}").cell,
    }
    return measures([(Check(shown, wanted - 1), say("claims.evaluations", **cells))])


def steps_fit_before_the_report(runs: RewardRuns, *, run: str) -> Measured:
    """Hold the time from a run's start to the end of the report's day against the time of the stated steps."""
    require_print(runs)
    start = STARTED.match(runs.text(run, "wandb_run"))
    if start is None:
        raise lacking("nothing_printed")
    began = datetime.strptime(start[1], "%Y%m%d_%H%M%S")
    ended = datetime.strptime(runs.text("", "report_date"), "%Y-%m-%d") + timedelta(days=1)
    hours, steps = (ended - began).total_seconds() / 3600, runs.fact(run, "total_steps_claimed")
    fastest, _ = _ends(runs, run, SECONDS)
    needed = Quantity(steps.value * fastest.value / 3600, 1, of=(*steps.of, *fastest.of), how="steps x seconds / 3600")
    told = say("claims.hours", hours=Name(f"{hours:.1f}"), needed=needed.cell)
    return measures([(Check(hours - needed.value), told)])


def display_shows_warm_up(runs: RewardRuns, *, run: str, fixed: str) -> Measured:
    """Hold a displayed learning rate against how the fixed rate of the other run would be displayed."""
    require_print(runs)
    shown, rate = runs.fact(run, "lr_displayed"), float(runs.text(fixed, "lr"))
    other = f"{rate:.{shown.digits}f}"
    told = say("claims.displayed", shown=shown.cell, rate=Name(f"{rate:g}"), other=Name(other))
    return measures([(Check(abs(float(other) - shown.value)), told)])


def steps_remain(runs: RewardRuns, *, run: str, until: int) -> Measured:
    """Hold the steps up to which training is to go on against those that are said to be done."""
    require_print(runs)
    stated = runs.fact(run, "total_steps_claimed")
    return measures([(Check(until - stated.value), say("claims.advice", until=until, done=stated.cell))])


def sequences_fit_the_context(runs: RewardRuns, *, limit: int) -> Measured:
    """Hold the stated sequence lengths against the longest that the model takes."""
    require_print(runs)
    parts: list[Part] = []
    for run in RUNS:
        _, tokens = runs.only(run, TOKENS)
        parts.append(
            (
                Check(limit - tokens.value),
                labelled(runs.label(run), say("claims.tokens", n=tokens.cell, limit=f"{limit}")),
            )
        )
    return measures(parts)


def lengths_fit_one_kind_of_step(runs: RewardRuns, *, longest_prompt: int, prompt_spread: float) -> Measured:
    """Hold the prompt lengths that follow from two pairs of totals and responses against each other.

    The total of a step is tokens per GPU x GPUs; the sequences of a step are a multiple of the group size and of
    the GPUs; a prompt is longer than nothing and at most `longest_prompt` tokens. `prompt_spread` is the relative
    range of the prompt texts.
    """
    require_print(runs)
    lengths: dict[str, Quantity] = {}
    for run in RUNS:
        tokens, response = (runs.only(run, name)[1] for name in (TOKENS, RESPONSE))
        gpus, group = (int(runs.fact(run, name).value) for name in ("n_gpus", "rollout_n"))
        total, unit = tokens.value * gpus, math.lcm(gpus, group)
        prompts = {n: total / n - response.value for n in range(unit, int(total / response.value) + 1, unit)}
        possible = {n: length for n, length in prompts.items() if 0 < length <= longest_prompt}
        if len(possible) != 1:
            raise lacking("sequences", run=runs.label(run))
        ((n, length),) = possible.items()
        keys = (*tokens.of, *response.of)
        lengths[run] = Quantity(length, 0, of=keys, how=f"tokens x {gpus} / {n} minus the response")
    gap = abs(lengths[KL].value - lengths[NO_KL].value)
    slack = prompt_spread * max(length.value for length in lengths.values())
    shown = listed({runs.label(run): length for run, length in lengths.items()})
    return measures([(Check(gap, slack), labelled(say("claims.name.prompt_tokens"), shown))])


def takes_longer_by(runs: RewardRuns) -> Measured:
    """Hold the printed extra seconds a step against the ends of the printed ranges."""
    require_print(runs)
    pairs = zip(_ends(runs, KL, SECONDS), _ends(runs, NO_KL, SECONDS), strict=True)
    claimed = _ends(runs, DIFFERENCE, "time_per_step_diff_s")
    return measures([held(_exact(a - b), said) for (a, b), said in zip(pairs, claimed, strict=True)])


def range_lies_lower(runs: RewardRuns, *, metric: str, lower: str, higher: str, beside: Causes) -> Measured:
    """Hold the difference of the middles of two printed ranges against half of their widths.

    `cause` is judged by the settings that differ beside the named ones.
    """
    gap, needed = _apart(runs, metric, lower, higher)
    return measures([(Check(gap, needed), _ranges(runs, metric))], differs=runs.differs(beside=beside))


def ranges_are_alike(runs: RewardRuns, *, metric: str, at_most: float) -> Measured:
    """Hold the ratio of the widths of two printed ranges against a bound, and their middles as `range_lies_lower`."""
    widths = [high.value - low.value for low, high in (_ends(runs, run, metric) for run in RUNS)]
    if not min(widths):
        raise lacking("no_width")
    gap, needed = _apart(runs, metric, *RUNS)
    checks: list[Part] = [(Check(at_most - max(widths) / min(widths)), None), (Check(needed - abs(gap)), None)]
    return measures(checks, _ranges(runs, metric))


def drifts_less(runs: RewardRuns, *, metric: str, steadier: str, than: str, beside: Causes) -> Measured:
    """Compare the divergence from the reference of two runs at the same steps, which both have to log.

    `cause` is judged by the settings that differ beside the named ones.
    """
    by_run = {run: _known(runs, run, metric) for run in (than, steadier)}
    return _paired_gap(runs, by_run, less=steadier, than=than, beside=beside)


def overfits_less(runs: RewardRuns, *, metric: str, steadier: str, than: str, beside: Causes) -> Measured:
    """Compare how far the training reward lies above the sampled validation reward, each as a share of its ceiling.

    `cause` is judged by the settings that differ beside the named ones.
    """
    gaps: dict[str, dict[int, Quantity]] = {}
    for run in (steadier, than):
        trained, validated = (_known(runs, run, name) for name in (metric, VALIDATED))
        gaps[run] = {step: trained[step] - validated[step] for step in trained if step in validated}
    return _paired_gap(runs, gaps, less=steadier, than=than, beside=beside)


def declines_less(runs: RewardRuns, *, steadier: str, than: str) -> Measured:
    """Compare how far two runs end below their best reward.

    The difference of two declines is one of four evaluations, so its noise is 1.96 sqrt(4) standard errors of one.
    """
    _ = runs.steps
    declines, shown = {}, {}
    for run in (steadier, than):
        rewards = runs.measured[run]
        best, last = max(rewards, key=lambda step, of=rewards: (of[step].value, -step)), max(rewards)  # type: ignore[misc]
        if best == last:
            raise lacking("best_is_last", run=runs.label(run), step=best)
        declines[run] = rewards[best].value - rewards[last].value
        shown[runs.label(run)] = _result(rewards[last] - rewards[best])
    needed = 1.96 * 2 * runs.noise.sd
    noise = named(noise=runs.of(needed, 3, "1.96 errors of four evaluations"))
    told = labelled(say("claims.name.decline"), listed(shown))
    return measures([(Check(declines[than] - declines[steadier], needed), told)], noise, differs=runs.differs())


def response_is_longer(runs: RewardRuns, *, longer: str, than: str, beside: Causes) -> Measured:
    """Compare response lengths, which need the same step; ours at all steps that are known."""
    if not runs.is_print:
        by_run = {run: _known(runs, run, RESPONSE) for run in (longer, than)}
        return _paired_gap(runs, by_run, less=than, than=longer, beside=beside)
    (first, one), (second, other) = runs.only(longer, RESPONSE), runs.only(than, RESPONSE)
    told = {say("claims.run_at", run=runs.label(longer), step=first): one}
    told |= {say("claims.run_at", run=runs.label(than), step=second): other}
    differs = () if first == second else (say("claims.name.step"),)
    check = Check(one.value - other.value)
    return measures([(check, listed(told))], differs=(*runs.differs(beside=beside), *differs))


def _best(runs: RewardRuns, run: str) -> Quantity:
    return runs.reward(run, _best_step(runs, run))


def _best_step(runs: RewardRuns, run: str) -> int:
    return int(runs.curve(run).best_step)


def _exact(found: Quantity) -> Quantity:
    """Return a number of printed rewards, which the documents take as they stand."""
    return Quantity(found.value, found.digits, 0.0, found.of, found.terms, found.how, found.sign)


def _as_printed(found: Quantity, said: Quantity, step: int) -> Part:
    told = say("claims.is", value=Quantity(found.value, said.digits, of=found.of, how=found.how, sign=True).cell,
               said=said.cell)  # fmt: skip
    return Check(found.value - said.value, said.rounding), labelled(_step(step), told)


def _paired(runs: RewardRuns) -> tuple[Cell, ...]:
    found = runs.comparison
    mean = runs.of(found.mean, 3, "mean difference", sign=True).cell
    ends = [runs.of(end, 3, "end of the t interval").cell for end in (found.low, found.high)]
    told = say("claims.interval", value=mean, low=ends[0], high=ends[1])
    return labelled(_minus(runs, KL, NO_KL), told), p_value("paired_t", found.p_t)


def _reached(runs: RewardRuns, step: float | None, run: str) -> Cell:
    return say("claims.never") if step is None else runs.of(step, 0, "first step", run).cell


def _known(runs: RewardRuns, run: str, metric: str) -> dict[int, Quantity]:
    series = runs.series(run, metric)
    if not series:
        raise runs.lacking("not_published_of", what=say(f"claims.metric.{metric}"), run=runs.label(run))
    return series


def _paired_gap(
    runs: RewardRuns, by_run: Mapping[str, Mapping[int, Quantity]], *, less: str, than: str, beside: Causes
) -> Measured:
    """Return `than` minus `less` over common steps, with a t test that allows for neighbouring steps being alike."""
    steps = [step for step in by_run[less] if step in by_run[than]]
    if len(steps) < FEWEST:
        raise lacking("no_common_steps")
    gaps = [by_run[than][step].value - by_run[less][step].value for step in steps]
    means = {run: average([by_run[run][step] for step in steps], 4) for run in (less, than)}
    told = labelled(
        say("claims.mean_of_steps", n=len(steps)), listed({runs.label(run): value for run, value in means.items()})
    )
    p = drifting_t_p(gaps)
    check = Check(math.fsum(gaps) / len(gaps), p=p)
    return measures([(check, told)], p_value("drifting_t", p), differs=runs.differs(beside=beside))


def _ends(runs: RewardRuns, run: str, metric: str) -> tuple[Quantity, Quantity]:
    """Return the ends of a printed range."""
    return runs.fact(run, f"{metric}_min"), runs.fact(run, f"{metric}_max")


def _ranges(runs: RewardRuns, metric: str) -> Cell:
    ends = {run: _ends(runs, run, metric) for run in RUNS}
    return listed(
        {runs.label(run): say("claims.range", low=low.cell, high=high.cell) for run, (low, high) in ends.items()}
    )


def _apart(runs: RewardRuns, metric: str, lower: str, higher: str) -> tuple[float, float]:
    """Return how far the middles of two printed ranges lie apart, and the sum of their half widths."""
    (a, b), (c, d) = (_ends(runs, run, metric) for run in (lower, higher))
    gap = (c.value + d.value - a.value - b.value) / 2
    return gap, (b.value - a.value + d.value - c.value) / 2


def _by_step(series: Mapping[int, Quantity]) -> Cell:
    return listed({_step(step): value for step, value in series.items()})


def _minus(runs: RewardRuns, left: str, right: str) -> Cell:
    return say("claims.minus", left=runs.label(left), right=runs.label(right))


def _step(step: int) -> Cell:
    return say("claims.step", step=step)


def _result(gap: Quantity) -> Cell:
    return Quantity(gap.value, gap.digits, of=gap.of, how=gap.how, sign=gap.sign).cell
