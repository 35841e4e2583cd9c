"""`python -m lever_pipe plan [words for Snakemake]`: what would run, why, and how long by the benchmark records.

The words are those of the run itself: targets, `--configfile`, `--workflow-profile`. Nothing is run or locked, and no
result is written; where somebody replaced an output, its run card notes that, as in any dry run.
A rule's seconds are the median of the records that jobs of this rule left on the same kind of device below the results
folder. A rule without a record is no part of the estimate; its requested runtime is shown as an upper bound. What the
LVLM has to compute in such rules is told too, counted from the configuration with nothing shared.
`--json` prints the same for programs.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tabulate import tabulate

from lever_pipe.base import contents
from lever_pipe.commands.telling import as_json, words_for_snakemake
from lever_pipe.experiment.studies import Experiment
from lever_pipe.runtime.lvlm_work import FLOP_PER_SECOND, lvlm_work
from lever_pipe.runtime.plan import parameters_of
from lever_pipe.runtime.rerun.artefacts import cards_below, read_artefact
from lever_pipe.runtime.rerun.explain import Explained, explain
from lever_pipe.runtime.sizing import gpus_of
from lever_pipe.runtime.snakemake_adapter import PlannedJob, configured_experiment, planned_jobs, results_folder

CARD, RECORD = "run.json", "benchmark.jsonl"
Records = dict[tuple[str, str], list[float]]
"""Rule and kind of device -> seconds of each job that left a record."""
HEADS = ("rule", "jobs", "s each", "records", "GPU-h", "CPU-h", "max GPU-h", "max CPU-h", "why")


class Hours(NamedTuple):
    """Hours of GPUs and of CPU cores."""

    gpu: float
    cpu: float


class RuleForecast(NamedTuple):
    """What is expected of the planned jobs of a rule.

    Attributes:
        why: reason -> how many jobs.
        seconds: the median of the records; None without one.
        hours: the estimate; None without a record.
        at_most: by the requested runtime; None with a record, or where no runtime is requested.
        spared: how many jobs will not be computed, because what they make is there or in the store; they cost nothing.
    """

    rule: str
    jobs: int
    why: dict[str, int]
    seconds: float | None
    records: int
    hours: Hours | None
    at_most: Hours | None
    spared: int = 0


class LvlmForecast(NamedTuple):
    """What the LVLM computes at most in rules without a record; `flop` and `gpu_hours` are None for unknown weights."""

    prompts: int
    tokens: int
    flop: float | None
    gpu_hours: float | None


class Forecast(NamedTuple):
    """What is expected of a plan."""

    rules: tuple[RuleForecast, ...]
    lvlm: LvlmForecast | None = None


def main(words: Sequence[str]) -> int:
    """Print the forecast and return 0."""
    options = words_for_snakemake(words, __doc__)
    if options:
        jobs, results = planned_jobs(options.words), results_folder(options.words)
        explained = explain(jobs, results=results, digests=contents.remembered())
        plan = forecast(explained, recorded(results))
        plan = plan._replace(lvlm=lvlm_forecast(configured_experiment(options.words), plan.rules))
        sys.stdout.write(as_json(as_object(plan)) if options.as_json else text(plan))
    return 0


def forecast(explained: Sequence[Explained], records: Records) -> Forecast:
    """Return what is expected of these jobs, by rule in the order in which the rules are planned."""
    by_rule: dict[str, list[Explained]] = {}
    for each in explained:
        by_rule.setdefault(each.job.rule, []).append(each)
    return Forecast(tuple(_forecast_rule(rule, members, records) for rule, members in by_rule.items()))


def lvlm_forecast(experiment: Experiment, rules: Sequence[RuleForecast]) -> LvlmForecast | None:
    """Return what the LVLM computes in planned rules that have left no record; None where it computes nothing."""
    work = lvlm_work(experiment, {rule.rule: rule.jobs - rule.spared for rule in rules if not rule.records})
    if not work.prompts:
        return None
    parameters = parameters_of(experiment.lvlm.model)
    flop = work.flop(parameters) if parameters else None
    return LvlmForecast(*work, flop, flop / FLOP_PER_SECOND / 3600 if flop else None)


def recorded(results: Path) -> Records:
    """Return what jobs took, by the benchmark records beside the run cards below the results."""
    records: Records = {}
    for card in cards_below(results):
        made, record = read_artefact(card).made, card.with_name(card.name.removesuffix(CARD) + RECORD)
        if made is None or not record.exists():
            continue
        for line in record.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError, KeyError, TypeError):  # a killed job leaves half a line
                seconds = float(json.loads(line)["s"])
                if math.isfinite(seconds):
                    records.setdefault((made.stage, _kind(made.device)), []).append(seconds)
    return records


def as_object(plan: Forecast) -> dict[str, Any]:
    """Return a forecast with its totals, as JSON holds them."""
    return {
        "jobs": sum(rule.jobs for rule in plan.rules),
        "rules": plan.rules,
        "hours": _sum(rule.hours for rule in plan.rules),
        "at_most_without_record": _sum(rule.at_most for rule in plan.rules),
        "lvlm_without_record": plan.lvlm,
    }


def text(plan: Forecast) -> str:
    """Return a forecast as an aligned table with its totals, as wide as a terminal."""
    if not plan.rules:
        return "Nothing to be done: every file is there and up to date.\n"
    estimate, bound = _sum(rule.hours for rule in plan.rules), _sum(rule.at_most for rule in plan.rules)
    n_jobs, n_records = sum(rule.jobs for rule in plan.rules), sum(rule.records for rule in plan.rules)
    totals = map(_hours, (*estimate, *bound))
    rows = [*map(_cells, plan.rules), ("total", str(n_jobs), "", str(n_records), *totals, "")]
    sides = ("left", *("right",) * (len(HEADS) - 2), "left")
    lines = [tabulate(rows, HEADS, "plain", colalign=sides, disable_numparse=True, maxcolwidths=[None] * 8 + [50]), ""]
    known = sum(rule.jobs for rule in plan.rules if rule.records)
    if known:
        lines.append(
            f"Estimate for {known} of {n_jobs} jobs: {_hours(estimate.gpu)} GPU-hours, {_hours(estimate.cpu)} "
            "CPU-core-hours."
        )
    if n_jobs > known:
        lines.append(
            f"Upper bound for the {n_jobs - known} jobs of rules without record: "
            f"{_hours(bound.gpu)} GPU-hours, {_hours(bound.cpu)} CPU-core-hours, by their requested runtime."
        )
    if n_spared := sum(rule.spared for rule in plan.rules):
        lines.append(f"{n_spared} of these jobs will be spared: what they make is there, or in the store.")
    if plan.lvlm:
        cost = "its weights are not there, so nobody knows how much work that is"
        if plan.lvlm.flop is not None and plan.lvlm.gpu_hours is not None:
            hours = _hours(plan.lvlm.gpu_hours)
            cost = f"{plan.lvlm.flop:.1e} operations, {hours} hours of a GPU that does {FLOP_PER_SECOND:.0e} a second"
        lines.append(
            f"In those the LVLM answers at most {plan.lvlm.prompts:,} prompts of {plan.lvlm.tokens:,} tokens, "
            f"with images of 640 x 480 and nothing shared: {cost}."
        )
    if unbounded := [rule.rule for rule in plan.rules if rule.hours is None and rule.at_most is None]:
        lines.append(f"Neither a record nor a requested runtime: {', '.join(unbounded)}.")
    return "\n".join(lines) + "\n"


def _forecast_rule(rule: str, explained: Sequence[Explained], records: Records) -> RuleForecast:
    jobs = [each.job for each in explained]
    kinds = {_kind(job.resources.get("device")) for job in jobs}
    seconds = [value for kind in sorted(kinds) for value in records.get((rule, kind), [])]
    median = statistics.median(seconds) if seconds else None
    computed, minutes = [job for job in jobs if not job.spared], [job.resources.get("runtime") for job in jobs]
    is_bounded = median is None and all(isinstance(each, int | float) for each in minutes)
    return RuleForecast(
        rule=rule,
        jobs=len(jobs),
        why=dict(Counter(each.in_short for each in explained).most_common()),
        seconds=median,
        records=len(seconds),
        hours=None if median is None else _sum(_taken(job, median) for job in computed),
        at_most=_sum(_taken(job, 60 * job.resources["runtime"]) for job in computed) if is_bounded else None,
        spared=len(jobs) - len(computed),
    )


def _taken(job: PlannedJob, seconds: float) -> Hours:
    """Return the hours of a job; without a scheduler no GPU is requested, and each process has one."""
    processes = int(job.resources.get("processes") or 1) if _kind(job.resources.get("device")) == "cuda" else 0
    hours = seconds / 3600
    return Hours(hours * (gpus_of(job.resources) or processes), hours * job.threads)


def _kind(device: object) -> str:
    """Return the kind of a device: `cuda` of `cuda:0`; a rule without one computes on the CPU."""
    return str(device or "cpu").partition(":")[0]


def _sum(hours: Iterable[Hours | None]) -> Hours:
    known = [each for each in hours if each is not None]
    return Hours(sum(each.gpu for each in known), sum(each.cpu for each in known))


def _cells(rule: RuleForecast) -> tuple[str, ...]:
    reasons = [f"{n} {reason}" if len(rule.why) > 1 else reason for reason, n in rule.why.items()]
    seconds = "no record" if rule.seconds is None else f"{rule.seconds:,.1f}"
    hours = [_hours(value) for pair in (rule.hours, rule.at_most) for value in (pair or (None, None))]
    return (rule.rule, str(rule.jobs), seconds, str(rule.records), *hours, "; ".join(reasons))


def _hours(value: float | None) -> str:
    if value is None:
        return ""
    return "<0.01" if 0 < value < 0.005 else f"{value:,.2f}" if value else "0"
