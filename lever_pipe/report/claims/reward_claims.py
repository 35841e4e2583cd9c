"""What documents 003 and 004 say: rewards, their steadiness, steps, lengths and drift of the two runs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TypeVar

import numpy as np

from lever_pipe.report.cells import Cell, Name, say
from lever_pipe.report.claims.quantities import (
    Quantity,
    average,
    held,
    keys_of,
    labelled,
    less,
    listed,
    named,
    p_value,
    percent,
    printed,
    t_p,
)
from lever_pipe.report.claims.reward_runs import DIFFERENCE, FEWEST, KL, NO_KL, RUNS, VALIDATED, RewardRuns
from lever_pipe.report.claims.verdicts import ALPHA, Check, Part, lacking, require_print
from lever_pipe.statistics.curve_tests import f_test, half_width
from lever_pipe.statistics.curves import first_reaching

TOKENS, RESPONSE = "mean_sequence_length_tokens_as_labelled", "response_length_tokens"
SECONDS = "time_per_step_s"
STARTED = re.compile(r"run-(\d{8}_\d{6})-")
Parts = Iterator[Part]
Steps = tuple[int, ...]
T = TypeVar("T")


def printed_series_is_measured(runs: RewardRuns, *, run: str, metric: str) -> Parts:
    """Hold estimated rewards, differences between the runs or changes in percent against the measured rewards."""
    require_print(runs)
    series = runs.series(run, metric)
    if not series:
        raise lacking("nothing_printed")
    for step, said in series.items():
        if metric == "val_reward_estimated":
            found = runs.reward(run, step)
            told = say("claims.estimated", said=said.cell, value=found.cell)
        else:
            found = runs.reward(KL, step) - runs.reward(NO_KL, step) if run == DIFFERENCE else _change(runs, run, step)
            shown = replace(found, digits=said.digits, sign=True)
            told = say("claims.is", value=shown.cell, said=said.cell)
        yield Part(Check(found.value - said.value, said.rounding), labelled(_step(step), told))


def largest_change_is(runs: RewardRuns, *, run: str) -> Parts:
    """Hold the printed largest change against the largest of all."""
    require_print(runs)
    said = runs.fact(run, "max_abs_change_pct")
    changes = 100 * np.array(runs.curve(run).relative_changes)
    at = int(np.argmax(np.abs(changes)))
    largest = runs.of(float(abs(changes[at])), 1, "largest change in percent", run)
    told = say("claims.is", value=largest.cell, said=said.cell)
    what = say("claims.from_to", first=int(runs.steps[at]), last=int(runs.steps[at + 1]))
    yield Part(Check(largest.value - said.value, said.rounding), labelled(what, told))


def best_is(runs: RewardRuns, *, run: str, claimed: str) -> Parts:
    """Hold the best reward of a run against a printed one."""
    require_print(runs)
    step, best = _best(runs, run)
    told = say("claims.is", value=best.cell, said=Name(claimed))
    yield Part(Check(best.value - float(claimed), printed(claimed).rounding), labelled(_step(step), told))


def best_difference_is(runs: RewardRuns, *, claimed: str, percent_of: str = "") -> Parts:
    """Hold the difference of the best rewards, or its size in percent of one of them, against a printed one."""
    require_print(runs)
    best = {run: _best(runs, run)[1] for run in RUNS}
    gap, digits = best[KL] - best[NO_KL], 0
    if percent_of:
        low, high = sorted(best.values(), key=lambda each: each.value)
        gap, digits = percent(high - low, best[percent_of]), 2
    yield held(replace(gap, rounding=0.0), printed(claimed), digits=digits)


def is_ahead_at(runs: RewardRuns, *, ahead: str, behind: str, steps: Steps) -> Parts:
    """Tell whether a run lies above the other at each of the steps."""
    for step in steps:
        gap = runs.reward(ahead, step) - runs.reward(behind, step)
        yield Part(Check(gap.value), labelled(_step(step), say("claims.result", terms=gap.equation, value=gap.cell)))


def is_ahead_on_average(runs: RewardRuns, *, ahead: str, behind: str, steps: Steps) -> Parts:
    """Hold the mean difference over some steps against the noise of such a mean.

    The noise is half a 95 % t interval with the standard deviation of all paired differences.
    """
    mean = average([runs.reward(ahead, step) - runs.reward(behind, step) for step in steps])
    needed = half_width(runs.comparison.sd, len(steps), len(runs.steps) - 1)
    shown = replace(mean, how="mean difference", sign=True)
    yield Part(Check(mean.value, needed), labelled(_minus(runs, ahead, behind), shown.cell))
    yield Part(None, named(noise=runs.of(needed, 3, "half of the t interval")))


def best_is_higher(runs: RewardRuns, *, higher: str, lower: str) -> Parts:
    """Hold the difference of best values against what two flat runs of as many noisy values show."""
    gap = runs.curve(higher).most - runs.curve(lower).most
    p = runs.noise.chance_of_best_gap(abs(gap))
    what = say("claims.best_of", which=_minus(runs, higher, lower))
    yield Part(Check(gap, p=p), labelled(what, runs.of(gap, 3, "best minus best", sign=True).cell))
    yield Part(None, p_value("flat", p))


def difference_is_insignificant(runs: RewardRuns) -> Parts:
    """Tell whether a paired t test leaves the two curves unseparated; of ours the test over training seeds."""
    if runs.is_print:
        found = runs.comparison
        yield from (Part(Check(p - ALPHA)) for p in (found.p_t, found.p_wilcoxon))
        yield from _paired(runs)
        return
    if len(runs.seeds) < 2:
        raise lacking("one_seed")
    gaps = runs.seed_differences
    p, mean = t_p(gaps), runs.of(float(np.mean(gaps)), 3, "mean difference", sign=True)
    yield Part(Check(p - ALPHA), labelled(_minus(runs, KL, NO_KL), mean.cell))
    yield Part(None, p_value("over_seeds", p, f"paired t over seeds: mean reward of {' '.join(runs.arms.values())}"))


def rewards_are_close(runs: RewardRuns, *, margin: float) -> Parts:
    """Hold the mean paired difference and its 95 % interval against a margin."""
    found = runs.comparison
    yield Part(Check(found.mean, (found.high - found.low) / 2, margin=margin))
    yield from _paired(runs)
    yield Part(None, named(margin=Name(f"{margin:g}")))


def curves_differ(runs: RewardRuns) -> Parts:
    """Tell whether a paired t test separates the two curves."""
    yield Part(Check(runs.comparison.mean, p=runs.comparison.p_t, either_way=True))
    yield from _paired(runs)


def best_comes_earlier(runs: RewardRuns, *, earlier: str, later: str) -> Parts:
    """Hold the difference of the best steps against the spacing of the evaluations."""
    steps = {run: runs.of(_best(runs, run)[0], 0, "step of the best reward", run) for run in (earlier, later)}
    return less("best_step", _labels(runs, steps), needed=float(np.diff(runs.steps).max()))


def reaches_thresholds_sooner(runs: RewardRuns, *, sooner: str, than: str, thresholds: tuple[float, ...]) -> Parts:
    """Compare the first steps at which two runs reach each threshold that either reaches, on average.

    A run that does not reach one does so at the earliest one evaluation after its last.
    """
    end = float(runs.steps[-1] + np.diff(runs.steps)[-1])
    gaps, told = [], {}
    for threshold in thresholds:
        reached = {run: first_reaching(runs.steps, runs.rewards(run), threshold) for run in (sooner, than)}
        if any(step is not None for step in reached.values()):
            first, second = (end if step is None else step for step in reached.values())
            gaps.append(second - first)
            cells = [
                say("claims.never") if step is None else runs.of(step, 0, "first step", run).cell
                for run, step in reached.items()
            ]
            told[threshold] = say("claims.against", first=cells[0], second=cells[1])
    if not gaps:
        raise lacking("no_threshold")
    what = say("claims.thresholds", first=runs.label(sooner), second=runs.label(than))
    yield Part(Check(float(np.mean(gaps))), labelled(what, listed(told)))


def reaches_threshold_in_less_time(runs: RewardRuns, *, sooner: str, than: str, threshold: float) -> Parts:
    """Compare the seconds that two runs take to a threshold, at the middle of their printed seconds a step."""
    seconds = {}
    for run in (sooner, than):
        step = first_reaching(runs.steps, runs.rewards(run), threshold)
        if step is None:
            raise lacking("never_reaches", run=runs.label(run), threshold=threshold)
        low, high = _ends(runs, run, SECONDS)
        middle, how = (low.value + high.value) / 2, f"middle x {step:g} steps"
        seconds[run] = Quantity(step * middle, 0, of=(*low.of, *high.of), how=how)
    return less("seconds", _labels(runs, seconds))


def changes_less(runs: RewardRuns, *, steadier: str, than: str) -> Parts:
    """Compare the spread of the changes from evaluation to evaluation."""
    spread = {run: runs.of(runs.curve(run).sd_of_changes, 4, "sd of changes", run) for run in (steadier, than)}
    return less("sd_of_changes", _labels(runs, spread), test="f", p=runs.comparison.p_f_of_changes)


def window_varies_less(runs: RewardRuns, *, steadier: str, than: str, first: int, last: int) -> Parts:
    """Compare the spread of the rewards within a window of steps, which was chosen afterwards."""
    inside = (runs.steps >= first) & (runs.steps <= last)
    rewards = {run: runs.rewards(run)[inside] for run in (steadier, than)}
    if not all(np.unique(values).size > 1 for values in rewards.values()):
        raise lacking("window_flat", first=first, last=last)
    ranges = {run: runs.of(float(np.ptp(values)), 3, "range", run) for run, values in rewards.items()}
    return less("range", _labels(runs, ranges), test="f", p=f_test(*rewards.values()))


def falls_less(runs: RewardRuns, *, steadier: str, than: str) -> Parts:
    """Compare drawdowns; p is how often a flat run of as many noisy values falls as far as the larger one."""
    falls = {run: runs.of(runs.curve(run).drawdown, 3, "largest fall", run) for run in (steadier, than)}
    p = min(runs.noise.chance_of_drawdown(fall.value) for fall in falls.values())
    return less("drawdown", _labels(runs, falls), test="flat", p=p)


def falls_more_sharply(runs: RewardRuns, *, run: str, step: int, than: str) -> Parts:
    """Hold a fall at one step against the largest fall of the other run."""
    own = runs.change(run, step)
    changes = dict(zip(map(int, runs.steps[1:]), runs.curve(than).changes, strict=True))
    at = min(changes, key=lambda key: changes[key])
    other = runs.of(changes[at], 3, "largest fall", than, sign=True)
    yield Part(Check(other.value - own.value), listed([(_at(runs, run, step), own), (_at(runs, than, at), other)]))


def declines_less(runs: RewardRuns, *, steadier: str, than: str) -> Parts:
    """Compare how far two runs end below their best reward.

    The difference of two declines is one of four evaluations, so its noise is 1.96 sqrt(4) standard errors of one.
    """
    _ = runs.steps
    declines = {}
    for run in (steadier, than):
        rewards = runs.measured[run]
        best, last = max(rewards, key=lambda step, of=rewards: (of[step].value, -step)), max(rewards)  # type: ignore[misc]
        if best == last:
            raise lacking("best_is_last", run=runs.label(run), step=best)
        declines[run] = rewards[last] - rewards[best]
    needed = 1.96 * 2 * runs.noise.sd
    gap = declines[steadier].value - declines[than].value
    yield Part(Check(gap, needed), labelled(say("claims.name.decline"), listed(_labels(runs, declines))))
    yield Part(None, named(noise=runs.of(needed, 3, "1.96 errors of four evaluations")))


def metric_rises(runs: RewardRuns, *, run: str, metric: str) -> Parts:
    """Tell whether the values of a metric rise from step to step."""
    series = runs.series(run, metric)
    if len(series) < 2:
        raise runs.lacking("nothing_printed")
    for before, after in pairwise(series.values()):
        yield Part(Check(after.value - before.value))
    yield Part(None, listed({_step(step): series[step] for step in (min(series), max(series))}))


def growth_slows(runs: RewardRuns, *, run: str, metric: str) -> Parts:
    """Compare the growth a step from the middle value to the last with that from the first to the middle one."""
    series = sorted(runs.series(run, metric).items())
    if len(series) < 3:
        raise runs.lacking("nothing_printed")
    rates, told = [], {}
    for (a, first), (b, second) in pairwise((series[0], series[len(series) // 2], series[-1])):
        keys = (*first.of, *second.of)
        rates.append(Quantity((second.value - first.value) / (b - a), 4, of=keys, how="difference a step"))
        told[say("claims.from_to", first=a, last=b)] = say("claims.a_step", value=rates[-1].cell)
    yield Part(Check(rates[0].value - rates[1].value), listed(told))


def varies_less(runs: RewardRuns, *, metric: str, steadier: str, than: str) -> Parts:
    """Compare the spread of a metric in two runs over the same steps (F test); the end points of a few printed ones."""
    series = {run: runs.series(run, metric) for run in (steadier, than)}
    fewest, what = min(map(len, series.values())), say(f"claims.metric.{metric}")
    if fewest >= 2 and list(series[steadier]) != list(series[than]):
        raise runs.lacking("other_steps", what=what)
    if fewest < FEWEST:
        raise runs.lacking("no_spread", what=what)
    values = {run: [each.value for each in of.values()] for run, of in series.items()}
    spread = {
        run: Quantity(float(np.std(of, ddof=1)), 4, of=keys_of(*series[run].values()), how="sd over steps")
        for run, of in values.items()
    }
    return less("sd_over_steps", _labels(runs, spread), test="f", p=f_test(values[steadier], values[than]))


def steps_were_evaluated(runs: RewardRuns, *, run: str) -> Parts:
    """Hold the evaluations that are shown against those that the stated steps would hold."""
    require_print(runs)
    stated, spacing = runs.fact(run, "total_steps_claimed"), float(runs.steps[1] - runs.steps[0])
    shown, wanted = len(runs.steps), math.floor(stated.value / spacing)
    cells = {
        "shown": runs.of(shown, 0, "number of evaluations").cell,
        "wanted": Quantity(wanted, 0, of=stated.of, how=f"steps / {spacing:g}").cell,
    }
    yield Part(Check(shown, wanted - 1), say("claims.evaluations", **cells))


def steps_fit_before_the_report(runs: RewardRuns, *, run: str) -> Parts:
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
    yield Part(Check(hours - needed.value), say("claims.hours", hours=Name(f"{hours:.1f}"), needed=needed.cell))


def display_shows_warm_up(runs: RewardRuns, *, run: str, fixed: str) -> Parts:
    """Hold a displayed learning rate against how the fixed rate of the other run would be displayed."""
    require_print(runs)
    shown, rate = runs.fact(run, "lr_displayed"), float(runs.text(fixed, "lr"))
    other = f"{rate:.{shown.digits}f}"
    told = say("claims.displayed", shown=shown.cell, rate=rate, other=other)
    yield Part(Check(abs(float(other) - shown.value)), told)


def steps_remain(runs: RewardRuns, *, run: str, until: int) -> Parts:
    """Hold the steps up to which training is to go on against those that are said to be done."""
    require_print(runs)
    stated = runs.fact(run, "total_steps_claimed")
    yield Part(Check(until - stated.value), say("claims.advice", until=until, done=stated.cell))


def sequences_fit_the_context(runs: RewardRuns, *, limit: int) -> Parts:
    """Hold the stated sequence lengths against the longest that the model takes."""
    require_print(runs)
    for run in RUNS:
        _, tokens = runs.only(run, TOKENS)
        told = say("claims.tokens", n=tokens.cell, limit=f"{limit}")
        yield Part(Check(limit - tokens.value), labelled(runs.label(run), told))


def lengths_fit_one_kind_of_step(runs: RewardRuns, *, longest_prompt: int, prompt_spread: float) -> Parts:
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
    yield Part(Check(gap, slack), labelled(say("claims.name.prompt_tokens"), listed(_labels(runs, lengths))))


def takes_longer_by(runs: RewardRuns) -> Parts:
    """Hold the printed extra seconds a step against the ends of the printed ranges."""
    require_print(runs)
    pairs = zip(_ends(runs, KL, SECONDS), _ends(runs, NO_KL, SECONDS), strict=True)
    for (a, b), said in zip(pairs, _ends(runs, DIFFERENCE, "time_per_step_diff_s"), strict=True):
        yield held(replace(a - b, rounding=0.0), said)


def range_lies_lower(runs: RewardRuns, *, metric: str, lower: str, higher: str) -> Parts:
    """Hold the difference of the middles of two printed ranges against half of their widths."""
    gap, needed = _apart(runs, metric, lower, higher)
    yield Part(Check(gap, needed), _ranges(runs, metric))


def ranges_are_alike(runs: RewardRuns, *, metric: str, at_most: float) -> Parts:
    """Hold the ratio of the widths of two printed ranges against a bound, and their middles as `range_lies_lower`."""
    widths = [high.value - low.value for low, high in (_ends(runs, run, metric) for run in RUNS)]
    if not min(widths):
        raise lacking("no_width")
    gap, needed = _apart(runs, metric, *RUNS)
    yield Part(Check(at_most - max(widths) / min(widths)))
    yield Part(Check(needed - abs(gap)), _ranges(runs, metric))


def drifts_less(runs: RewardRuns, *, metric: str, steadier: str, than: str) -> Parts:
    """Compare the divergence from the reference of two runs at the same steps, which both have to log."""
    return _paired_gap(runs, {run: _known(runs, run, metric) for run in (than, steadier)}, less=steadier, than=than)


def overfits_less(runs: RewardRuns, *, metric: str, steadier: str, than: str) -> Parts:
    """Compare how far the training reward lies above the sampled validation reward, each as a share of its ceiling."""
    gaps: dict[str, dict[int, Quantity]] = {}
    for run in (steadier, than):
        trained, validated = (_known(runs, run, name) for name in (metric, VALIDATED))
        gaps[run] = {step: trained[step] - validated[step] for step in trained if step in validated}
    return _paired_gap(runs, gaps, less=steadier, than=than)


def response_is_longer(runs: RewardRuns, *, longer: str, than: str) -> Parts:
    """Compare response lengths, which need the same step; ours at all steps that are known."""
    if not runs.is_print:
        by_run = {run: _known(runs, run, RESPONSE) for run in (longer, than)}
        yield from _paired_gap(runs, by_run, less=than, than=longer)
        return
    (first, one), (second, other) = (runs.only(run, RESPONSE) for run in (longer, than))
    told = listed([(_at(runs, longer, first), one), (_at(runs, than, second), other)])
    yield Part(Check(one.value - other.value), told, () if first == second else (say("claims.name.step"),))


def _change(runs: RewardRuns, run: str, step: int) -> Quantity:
    """Return the change from the evaluation before in percent of that."""
    change = runs.change(run, step)
    before = Quantity(runs.reward(run, step).value - change.value, 3, of=change.of, how="before")
    return percent(change, before, 1)


def _best(runs: RewardRuns, run: str) -> tuple[int, Quantity]:
    step = int(runs.curve(run).best_step)
    return step, runs.reward(run, step)


def _paired(runs: RewardRuns) -> Parts:
    found = runs.comparison
    mean = runs.of(found.mean, 3, "mean difference", sign=True).cell
    low, high = (runs.of(end, 3, "end of the t interval").cell for end in (found.low, found.high))
    yield Part(None, labelled(_minus(runs, KL, NO_KL), say("claims.interval", value=mean, low=low, high=high)))
    yield Part(None, p_value("paired_t", found.p_t))


def _known(runs: RewardRuns, run: str, metric: str) -> dict[int, Quantity]:
    series = runs.series(run, metric)
    if not series:
        raise runs.lacking("not_published_of", what=say(f"claims.metric.{metric}"), run=runs.label(run))
    return series


def _paired_gap(runs: RewardRuns, by_run: Mapping[str, Mapping[int, Quantity]], *, less: str, than: str) -> Parts:
    """Yield `than` minus `less` over common steps, which seeds of ours can judge; one printed run cannot be tested.

    Steps of one run resemble their neighbours: at 5 % tests that allow for it reject up to 27 % of true nulls of 9
    steps, and up to 20 % of 18 (correlation .8).
    """
    steps = [step for step in by_run[less] if step in by_run[than]]
    if len(steps) < FEWEST:
        raise lacking("no_common_steps")
    means = {run: average([by_run[run][step] for step in steps], 4) for run in (less, than)}
    told = labelled(say("claims.mean_of_steps", n=len(steps)), listed(_labels(runs, means)))
    if runs.is_print:
        raise lacking("steps_alike", means=told)
    gaps = [by_run[than][step].value - by_run[less][step].value for step in steps]
    yield Part(Check(math.fsum(gaps) / len(gaps)), told)


def _ends(runs: RewardRuns, run: str, metric: str) -> tuple[Quantity, Quantity]:
    """Return the ends of a printed range."""
    return runs.fact(run, f"{metric}_min"), runs.fact(run, f"{metric}_max")


def _ranges(runs: RewardRuns, metric: str) -> Cell:
    ends = {run: _ends(runs, run, metric) for run in RUNS}
    told = {run: say("claims.range", low=low.cell, high=high.cell) for run, (low, high) in ends.items()}
    return listed(_labels(runs, told))


def _apart(runs: RewardRuns, metric: str, lower: str, higher: str) -> tuple[float, float]:
    """Return how far the middles of two printed ranges lie apart, and the sum of their half widths."""
    (a, b), (c, d) = (_ends(runs, run, metric) for run in (lower, higher))
    gap = (c.value + d.value - a.value - b.value) / 2
    return gap, (b.value - a.value + d.value - c.value) / 2


def _labels(runs: RewardRuns, of: Mapping[str, T]) -> dict[Cell, T]:
    """Return values by what a reader calls their runs."""
    return {runs.label(run): value for run, value in of.items()}


def _minus(runs: RewardRuns, left: str, right: str) -> Cell:
    return say("claims.minus", left=runs.label(left), right=runs.label(right))


def _at(runs: RewardRuns, run: str, step: int) -> Cell:
    return say("claims.run_at", run=runs.label(run), step=step)


def _step(step: int) -> Cell:
    return say("claims.step", step=step)
