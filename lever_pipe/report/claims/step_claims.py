"""What document 003 says about steps, tokens and seconds."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta

from lever_pipe.report.claims.quantities import percent_of
from lever_pipe.report.claims.reward_claims import ends, middle
from lever_pipe.report.claims.reward_runs import RewardRuns
from lever_pipe.report.claims.verdicts import Check, Measured, NotTestable
from lever_pipe.report.tables.intention.published import RUNS
from lever_pipe.report.tables.text import number, signed

TOKENS, RESPONSE = "mean_sequence_length_tokens_as_labelled", "response_length_tokens"
SECONDS = "time_per_step_s"
ALL_COMPUTE_THEM = "Every arm of ours computes the log-probabilities of the reference."
"""Why seconds of ours do not show what they cost."""
STARTED = re.compile(r"run-(\d{8}_\d{6})-")


def steps_were_evaluated(runs: RewardRuns, *, run: str) -> Measured:
    """Hold the evaluations that are shown against those that the stated steps would hold."""
    runs.require_print()
    stated, spacing = runs.fact(run, "total_steps_claimed").value, float(runs.steps[1] - runs.steps[0])
    shown, wanted = len(runs.steps), math.floor(stated / spacing)
    text = (
        f"{stated:g} steps hold {wanted} evaluations, {shown} are shown ({number(100 * shown / wanted, 1)} %); "
        f"the curve ends at step {runs.steps[-1]:g}"
    )
    return Measured(text, (Check(shown, wanted - 1),))


def steps_fit_before_the_report(runs: RewardRuns, *, run: str) -> Measured:
    """Hold the time from a run's start to the end of the report's day against the time of the stated steps."""
    runs.require_print()
    start = STARTED.match(runs.text(run, "wandb_run"))
    if start is None:
        raise NotTestable("The start of the run is not published.")
    began = datetime.strptime(start[1], "%Y%m%d_%H%M%S")
    ended = datetime.strptime(runs.text("", "report_date"), "%Y-%m-%d") + timedelta(days=1)
    hours, steps = (ended - began).total_seconds() / 3600, runs.fact(run, "total_steps_claimed").value
    fastest, _ = ends(runs, run, "time_per_step_s")
    needed = steps * fastest.value / 3600
    wanted = f"{steps:g} steps x {fastest} s = {number(needed, 1)} h"
    text = f"{number(hours, 1)} h to the end of the day of the report; {wanted}"
    return Measured(text, (Check(hours - needed),))


def display_shows_warm_up(runs: RewardRuns, *, run: str, fixed: str) -> Measured:
    """Hold a displayed learning rate against how the fixed rate of the other run would be displayed."""
    runs.require_print()
    shown, rate = runs.fact(run, "lr_displayed"), float(runs.text(fixed, "lr"))
    other = number(rate, shown.digits)
    text = f"displayed {shown}; a fixed rate of {rate:g} is displayed as {other}"
    return Measured(text, (Check(abs(float(other) - shown.value)),))


def steps_remain(runs: RewardRuns, *, run: str, until: int) -> Measured:
    """Hold the steps up to which training is to go on against those that are said to be done."""
    runs.require_print()
    stated = runs.fact(run, "total_steps_claimed").value
    text = f"the advice ends at step {until}; said to be done: {stated:g} steps"
    return Measured(text, (Check(until - stated),))


def sequences_fit_the_context(runs: RewardRuns, *, limit: int) -> Measured:
    """Hold the stated sequence lengths against the longest that the model takes."""
    runs.require_print()
    texts, checks = [], []
    for run in RUNS:
        step, tokens = runs.only(run, TOKENS)
        low, high = ends(runs, run, "throughput_tokens_per_s")
        fastest, slowest = ends(runs, run, "time_per_step_s")
        checks.append(Check(limit - tokens.value))
        texts.append(
            f"{runs.labels[run]}, step {step}: {tokens} tokens, limit {limit}; {tokens} / {high} tokens a second = "
            f"{number(tokens.value / high.value, 0)} s, {tokens} / {low} = {number(tokens.value / low.value, 0)} s; "
            f"a step takes {fastest} to {slowest} s"
        )
    return Measured("; ".join(texts), tuple(checks))


def lengths_fit_one_kind_of_step(runs: RewardRuns, *, longest_prompt: int, prompt_spread: float) -> Measured:
    """Hold the prompt lengths that follow from two pairs of totals and responses against each other.

    The total of a step is tokens per GPU x GPUs; the sequences of a step are a multiple of the group size and of
    the GPUs; a prompt is longer than nothing and at most `longest_prompt` tokens. `prompt_spread` is the relative
    range of the prompt texts.
    """
    runs.require_print()
    lengths, texts = {}, []
    for run in RUNS:
        tokens, response = (runs.only(run, name)[1] for name in (TOKENS, RESPONSE))
        gpus, group = (int(runs.fact(run, name).value) for name in ("n_gpus", "rollout_n"))
        total, unit = tokens.value * gpus, math.lcm(gpus, group)
        prompts = {n: total / n - response.value for n in range(unit, int(total / response.value) + 1, unit)}
        possible = {n: length for n, length in prompts.items() if 0 < length <= longest_prompt}
        if len(possible) != 1:
            raise NotTestable(f"{len(possible)} numbers of sequences fit the tokens of `{runs.labels[run]}`.")
        ((n, length),) = possible.items()
        lengths[run] = length
        texts.append(f"{runs.labels[run]}: {number(total, 0)} / {n} - {response} = {number(length, 0)} prompt tokens")
    gap, slack = abs(lengths["kl"] - lengths["nokl"]), prompt_spread * max(lengths.values())
    spread = f"difference {number(gap, 0)} tokens, range of the prompts {number(slack, 0)} tokens"
    return Measured(f"{'; '.join(texts)}; {spread}", (Check(gap, slack),))


def takes_longer_by(runs: RewardRuns) -> Measured:
    """Hold the printed extra seconds a step against the ends of the printed ranges."""
    runs.require_print()
    ours, theirs = ends(runs, "kl", "time_per_step_s"), ends(runs, "nokl", "time_per_step_s")
    claimed = ends(runs, "kl-nokl", "time_per_step_diff_s")
    texts, checks = [], []
    for a, b, said in zip(ours, theirs, claimed, strict=True):
        checks.append(Check(a.value - b.value - said.value, said.rounding))
        texts.append(f"{a} - {b} = {signed(a.value - b.value, 0)}, printed {said}")
    extra = middle(runs, "kl", "time_per_step_s") - middle(runs, "nokl", "time_per_step_s")
    return Measured(f"{'; '.join(texts)}; the middles differ by {number(extra, 1)} s", tuple(checks))


def range_lies_lower(runs: RewardRuns, *, metric: str, lower: str, higher: str, beside: tuple[str, ...]) -> Measured:
    """Hold the difference of the middles of two printed ranges against half of their widths.

    `cause` is judged by the settings that differ beside the named ones.
    """
    if runs.is_ours and metric == SECONDS:
        raise NotTestable(ALL_COMPUTE_THEM)
    sides = {run: ends(runs, run, metric) for run in (lower, higher)}
    gap, needed, apart = _apart(runs, metric, lower, higher, digits=1)
    texts = [f"{runs.labels[run]} {low} to {high}" for run, (low, high) in sides.items()]
    return Measured(f"{'; '.join(texts)}; {apart}", (Check(gap, needed),), runs.differs(beside=beside))


def ranges_are_alike(runs: RewardRuns, *, metric: str, at_most: float) -> Measured:
    """Hold the ratio of the widths of two printed ranges against a bound, and their middles as `range_lies_lower`."""
    sides = {run: ends(runs, run, metric) for run in RUNS}
    widths = {run: high.value - low.value for run, (low, high) in sides.items()}
    if not min(widths.values()):
        raise NotTestable("A range has no width.")
    ratio = max(widths.values()) / min(widths.values())
    texts = [
        f"{runs.labels[run]} {low} to {high}, width {number(widths[run], low.digits)}"
        for run, (low, high) in sides.items()
    ]
    gap, needed, apart = _apart(runs, metric, *RUNS, digits=3)
    text = f"{'; '.join(texts)}; ratio of the widths {number(ratio, 2)}, bound {at_most:g}; {apart}"
    return Measured(text, (Check(at_most - ratio), Check(needed - abs(gap))))


def _apart(runs: RewardRuns, metric: str, lower: str, higher: str, *, digits: int) -> tuple[float, float, str]:
    """Return how far the middles of two printed ranges lie apart, the sum of their half widths, and both as text."""
    gap = middle(runs, higher, metric) - middle(runs, lower, metric)
    needed = sum((high.value - low.value) / 2 for low, high in (ends(runs, run, metric) for run in (lower, higher)))
    share = percent_of(gap, middle(runs, "nokl", metric))  # the earlier run is what the documents compare with
    middles = f"the middles differ by {number(gap, digits)} ({number(share, 1)} %)"
    return gap, needed, f"{middles}, the half widths add up to {number(needed, digits)}"
