"""`lever-pipe plan [words for Snakemake]`: the jobs of a run, their reasons, and their duration by the manifests.

The words are the same as for the run: targets, `--configfile`, `--workflow-profile`. Nothing is run or locked, and no
result is written; as in any dry run, the manifest of a replaced output records the replacement.
A rule's seconds are the median over the manifests of its jobs on the same kind of device below the results folder. For
a rule without a manifest, the requested runtime is an upper bound, under `max`.
Below the table follow the maximum of requests to an LVLM, and for a large one calculated tokens, operations and hours
of a GPU. Absent raw files are assumed, with the numbers of questions in the configuration; the output
ends with the unmet requirements of a run. `--json` prints the same for programs.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from lever_pipe.base import contents
from lever_pipe.base.artefacts import manifests_below, read_artefact
from lever_pipe.runtime import lvlm_work
from lever_pipe.runtime.checks import local_checks
from lever_pipe.runtime.checks.findings import Level
from lever_pipe.runtime.reruns import skip
from lever_pipe.runtime.reruns.why import Explained, explain
from lever_pipe.runtime.sizing import gpus_of
from lever_pipe.runtime.snakemake_adapter import PlannedJob, experiment_of, planned_jobs

Records = dict[tuple[str, str], list[float]]
"""Rule and kind of device -> seconds of each job with a record."""
HEADS = ("rule", "jobs", "s each", "records", "GPU-h", "CPU-h", "max GPU-h", "max CPU-h", "why")


@dataclass(frozen=True)
class Hours:
    """Hours of GPUs and of CPU cores."""

    gpu: float = 0.0
    cpu: float = 0.0

    def __add__(self, other: Hours) -> Hours:
        """Return the sum of both."""
        return Hours(self.gpu + other.gpu, self.cpu + other.cpu)


@dataclass(frozen=True)
class RuleForecast:
    """The forecast for the planned jobs of a rule; jobs that will be skipped cost nothing."""

    rule: str
    jobs: int
    why: dict[str, int]  # reason -> number of jobs
    seconds: float | None  # the median of the records; None without one
    records: int
    hours: Hours | None  # the estimate; None without a record
    at_most: Hours | None  # by the requested runtime; None with a record, or if no runtime is requested
    skipped: int = 0  # jobs whose results exist already
    stored: int = 0  # of the skipped jobs, those whose results are in the store only


def main(words: Sequence[str]) -> int:
    """Print the forecast and return 0."""
    rest = [word for word in words[1:] if word != "--json"]
    if {"-h", "--help"} & set(rest):
        sys.stdout.write(__doc__ or "")
        return 0
    (experiment, found), jobs = experiment_of(rest), planned_jobs(rest)
    results = Path(experiment.results)
    rules = forecast(explain(jobs, results=results, digests=contents.remembered()), recorded(results))
    work = lvlm_work.lvlm_work(jobs, experiment)
    checks = local_checks.check(experiment, rules={job.rule for job in jobs}, folder=Path())
    missing = [outcome.text for outcome in checks if outcome.level is Level.PROBLEM]
    if "--json" in words:
        lvlm = {"at_most": [entry._asdict() for entry in work], "estimated_hours": lvlm_work.hours(work)}
        sys.stdout.write(json.dumps(as_object(rules) | {"lvlm": lvlm, "missing": missing}, indent=2) + "\n")
    else:
        line = found.destination(experiment.results)
        lacks = "\n  ".join(["\nA run needs first (lever-pipe doctor checks again):", *missing]) + "\n"
        sys.stdout.write(f"{line}\n\n".lstrip() + text(rules) + lvlm_work.text(work) + (lacks if missing else ""))
    return 0


def forecast(explained: Sequence[Explained], records: Records) -> list[RuleForecast]:
    """Return the forecasts for these jobs by rule, in the planned order of the rules."""
    by_rule: dict[str, list[Explained]] = {}
    for entry in explained:
        by_rule.setdefault(entry.job.rule, []).append(entry)
    return [_forecast_rule(rule, members, records) for rule, members in by_rule.items()]


def recorded(results: Path) -> Records:
    """Return the durations of jobs according to the manifests below the results."""
    records: Records = {}
    for manifest in manifests_below(results):
        if (origin := read_artefact(manifest).origin) is not None:
            records.setdefault((origin.stage, _kind(origin.device)), []).append(origin.seconds)
    return records


def as_object(rules: Sequence[RuleForecast]) -> dict[str, Any]:
    """Return a forecast with its totals as a JSON object."""
    hours, at_most = _totals(rules)
    totals = {"hours": asdict(hours), "at_most_without_record": asdict(at_most)}
    return {"jobs": sum(rule.jobs for rule in rules), "rules": list(map(asdict, rules)), **totals}


def text(rules: Sequence[RuleForecast]) -> str:
    """Return a forecast as an aligned table with its totals."""
    if not rules:
        return "Nothing to be done: every file exists and is up to date.\n"
    rows: list[tuple[object, ...]] = []
    for rule in rules:
        reasons = [f"{n} {reason}" if len(rule.why) > 1 else reason for reason, n in rule.why.items()]
        hours = [part for of in (rule.hours, rule.at_most) for part in ((of.gpu, of.cpu) if of else (None, None))]
        rows.append((rule.rule, rule.jobs, rule.seconds, rule.records, *hours, "; ".join(reasons)))
    totals = [part for of in _totals(rules) for part in (of.gpu, of.cpu)]
    rows.append(("total", sum(rule.jobs for rule in rules), None, sum(rule.records for rule in rules), *totals, ""))
    table = tabulate(rows, HEADS, "plain", intfmt=",", floatfmt=",.2f", maxcolwidths=[None] * 8 + [50])
    lines = [table, "", f"Of these jobs, {sum(rule.stored for rule in rules)} will come from the store."]
    if unchanged := sum(rule.skipped - rule.stored for rule in rules):
        lines.append(f"{unchanged} will be skipped: inputs unchanged.")
    if bounded := sum(rule.at_most is not None for rule in rules):
        lines.append(f"No job of {bounded} rules has ended yet: their max is a time limit, not an estimate.")
    return "\n".join(lines) + "\n"


def _totals(rules: Sequence[RuleForecast]) -> tuple[Hours, Hours]:
    """Return the estimated hours and the upper bounds."""
    hours = (rule.hours or Hours() for rule in rules)
    return sum(hours, Hours()), sum((rule.at_most or Hours() for rule in rules), Hours())


def _forecast_rule(rule: str, explained: Sequence[Explained], records: Records) -> RuleForecast:
    jobs = [entry.job for entry in explained]
    kinds = {_kind(job.resources.get("device")) for job in jobs}
    seconds = [value for kind in sorted(kinds) for value in records.get((rule, kind), [])]
    median = statistics.median(seconds) if seconds else None
    computed, minutes = [job for job in jobs if not job.skipped], [job.resources.get("runtime") for job in jobs]
    is_bounded = median is None and all(isinstance(minute, int | float) for minute in minutes)
    return RuleForecast(
        rule=rule,
        jobs=len(jobs),
        why=dict(Counter(entry.in_short for entry in explained).most_common()),
        seconds=median,
        records=len(seconds),
        hours=None if median is None else sum((_taken(job, median) for job in computed), Hours()),
        at_most=sum((_taken(job, 60 * job.resources["runtime"]) for job in computed), Hours()) if is_bounded else None,
        skipped=len(jobs) - len(computed),
        stored=sum(job.skipped == skip.STORED for job in jobs),
    )


def _taken(job: PlannedJob, seconds: float) -> Hours:
    """Return the hours of a job; without a scheduler, rules request no GPU, and a job on a GPU counts as one."""
    on_gpu = _kind(job.resources.get("device")) == "cuda"
    hours = seconds / 3600
    return Hours(hours * (gpus_of(job.resources) or int(on_gpu)), hours * job.threads)


def _kind(device: object) -> str:
    """Return the kind of a device, `cuda` for `cuda:0`; a rule without a device computes on the CPU."""
    return str(device or "cpu").partition(":")[0]
