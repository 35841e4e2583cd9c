"""`python -m lever_pipe plan [words for Snakemake]`: what would run, why, and how long by the benchmark records.

The words are those of the run itself: targets, `--configfile`, `--workflow-profile`. Nothing is run or locked, and no
result is written; Snakemake's records and times of files are brought in line with the run cards, as in any dry run.
A rule's seconds are the median of the records that jobs of this rule left on the same kind of device under the same
results folder. A rule without a record is no part of the estimate; its requested runtime is shown as an upper bound.
`--json` prints the same for programs.
"""

from __future__ import annotations

import glob
import io
import json
import logging
import math
import os
import re
import signal
import statistics
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

from lever_pipe.base.errors import ConfigError
from lever_pipe.runtime.sizing import gpus_of
from lever_pipe.runtime.snakemake_adapter import configuration_of, read_configuration_strictly

LOGGER = "snakemake.logging"
QUIET = ("--quiet", "host", "progress", "rules", "reason", "--dry-run")
"""Bare `--quiet` would end a dry run before it tells its jobs."""
MANY_CORES = 100_000
"""Where no cores are named, as on a cluster, a dry run takes one for granted and cuts the threads of each job to it."""
DEEDS = (
    *("touch", "unlock", "archive", "report", "lint", "containerize", "export_cwl", "generate_unit_tests"),
    *("cleanup_metadata", "cleanup_shadow", "delete_all_output", "delete_temp_output", "deploy_sources"),
    *("draft_notebook", "edit_notebook", "conda_cleanup_envs", "conda_create_envs_only"),
)
RECORD, CARD = "benchmark.jsonl", "run.json"
WIDTH, SHORTEST_WHY = 120, 20
SHOWN_KEYS = 3
MISSING, CONSEQUENCE = "missing output", "input rebuilt"
HEADS = ("rule", "jobs", "s each", "records", "GPU-h", "CPU-h", "max GPU-h", "max CPU-h", "why")

_SPEC = re.compile(r"--spec ('(?:[^']|'\"'\"')*')")
_REASONS = {
    "Forced execution": "forced",
    "Missing output files": MISSING,
    "Incomplete output files": "incomplete output",
    "Set of input files has changed": "other input files",
    "Code has changed": "the rule's command",
    "Software environment definition has changed": "software environment",
}
_UPDATED = re.compile(r"Updated input files: ([^;]+)")
_PARAMS = "Params have changed since last execution"


class PlannedJob(NamedTuple):
    """A job that would run.

    Attributes:
        reason: Snakemake's own words.
        resources: what is known before the job runs; of functions, the value for the first attempt.
        benchmark: path of its record; empty without one.
        command: its shell command.
    """

    rule: str
    wildcards: dict[str, str]
    reason: str
    threads: int
    resources: dict[str, Any]
    benchmark: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    command: str = ""


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
    """

    rule: str
    jobs: int
    why: dict[str, int]
    seconds: float | None
    records: int
    hours: Hours | None
    at_most: Hours | None


class Forecast(NamedTuple):
    """What is expected of a plan; `chain_seconds` is a lower bound of its time on any number of machines."""

    rules: tuple[RuleForecast, ...]
    chain_seconds: float


class UnplannableError(ConfigError):
    """Snakemake cannot plan; `found` is what it wrote, from the line on that names the error."""

    def __init__(self, status: int, out: str, err: str) -> None:
        lines = (out.strip() or err.strip()).splitlines()
        start = next((i for i, line in enumerate(lines) if "Error" in line or "Exception" in line), 0)
        found = "\n    ".join(lines[start:]) or f"exit status {status}"
        super().__init__("expected a workflow that Snakemake can plan", found=found, do="Mend what it names.")


def main(words: Sequence[str]) -> int:
    """Print the forecast and return 0.

    Raises:
        ConfigError: as `planned_jobs`.
    """
    rest = list(words[1:])
    if {"-h", "--help"} & set(rest):
        sys.stdout.write(__doc__ or "")
        return 0
    as_json = "--json" in rest
    found = forecast(planned_jobs([word for word in rest if word != "--json"]))
    sys.stdout.write(json.dumps(as_object(found), indent=2) + "\n" if as_json else text(found))
    return 0


def planned_jobs(words: Sequence[str]) -> list[PlannedJob]:
    """Return the jobs that Snakemake would run with these words, targets that make nothing aside.

    Runs Snakemake's dry run in this process, so it must not be called from within a run. Like every dry run it leaves
    a cache of file times below `.snakemake`, which the next run removes, one of digests, and Snakemake's records as
    the run cards have them.

    Raises:
        UnplannableError: Snakemake fails.
        ConfigError: words that ask Snakemake for something else than a run.
    """
    from snakemake import cli

    end = words.index("--") if "--" in words else len(words)  # behind it all words are targets
    read_configuration_strictly()
    options = options_of(words)
    _refuse_deeds(options)
    if "" in words:
        raise ConfigError("expected words for Snakemake", found="an empty one", do="Drop it, or give it its value.")
    configuration_of(options.get("configfile") or (), options.get("config"))
    cores = [] if options.get("cores") else ["--cores", str(MANY_CORES)]
    out, err = io.StringIO(), io.StringIO()
    status: Any = 0
    with _listening() as listener, redirect_stdout(out), redirect_stderr(err):
        try:
            cli.main([*words[:end], *QUIET, *cores, *words[end:]])
        except SystemExit as leaving:
            status = leaving.code
    if status:
        raise UnplannableError(status if isinstance(status, int) else 1, out.getvalue(), err.getvalue())
    return [job for job in listener.jobs if job.outputs]


def forecast(jobs: Sequence[PlannedJob]) -> Forecast:
    """Return what is expected of these jobs, by rule in the order in which the rules are planned."""
    by_rule: dict[str, list[PlannedJob]] = {}
    for job in jobs:
        by_rule.setdefault(job.rule, []).append(job)
    rules = tuple(_forecast_rule(rule, members) for rule, members in by_rule.items())
    seconds = {rule.rule: rule.seconds or 0.0 for rule in rules}
    return Forecast(rules, _longest_chain(jobs, seconds))


def recorded_seconds(job: PlannedJob) -> list[float]:
    """Return what jobs of the same rule, under the same results folder and on the same kind of device, took.

    The run card beside a record tells its stage, which is its rule, and its device.
    """
    found = []
    paths = glob.glob(record_pattern(job), recursive=True)  # noqa: PTH207 - the pattern may be absolute
    for path in map(Path, sorted(paths)):
        card = _read_object(path.with_name(path.name.removesuffix(RECORD) + CARD))
        if card.get("stage") == job.rule and _kind(card.get("device")) == _kind(job.resources.get("device")):
            found += _seconds_in(path)
    return found


def record_pattern(job: PlannedJob) -> str:
    """Return the glob pattern of the records of a job's rule: its own path without the values of its wildcards."""
    pattern = glob.escape(job.benchmark)
    for name, value in sorted(job.wildcards.items(), key=lambda item: -len(item[1])):
        anything = "**" if "/" in value else "*"
        escaped = re.escape(glob.escape(value))
        end = rf"(?=/|\.{re.escape(RECORD)}|$)"
        for before in (f"{name}~", "/"):
            pattern, n = re.subn(rf"(.*){before}{escaped}{end}", rf"\g<1>{before}{anything}", pattern, count=1)
            if n:
                break
    return pattern


def why(job: PlannedJob) -> str:
    """Return in a few words why a job would run; of a changed configuration the keys."""
    found = [short for phrase, short in _REASONS.items() if phrase in job.reason.split(_PARAMS)[0]]
    updated = _UPDATED.search(job.reason.split(_PARAMS)[0])
    if updated:
        found += [f"input: {name}" for name in sorted({Path(path).name for path in updated[1].split(", ")})]
    if _PARAMS in job.reason:
        keys = changed_keys(job)
        found.append(f"changed: {_first(keys)}" if keys else "configuration or code")
    return ", ".join(found) or CONSEQUENCE


def changed_keys(job: PlannedJob) -> list[str]:
    """Return the keys of a job's identity that differ from the run card beside its former outputs."""
    spec = _SPEC.search(job.command)
    card = next((path for path in job.outputs if path.endswith(CARD)), "")
    old = _read_object(Path(card)) if card else {}
    if spec is None or "config" not in old:
        return []
    new = json.loads(spec[1][1:-1].replace("'\"'\"'", "'"))
    before, after = _flat(old["config"]), _flat(new.get("config", {}))
    keys = [key for key, value in after.items() if key not in before or before[key] != value]
    return [*keys, *(["code"] if old.get("code") != new.get("code") else [])]


def as_object(found: Forecast) -> dict[str, Any]:
    """Return a forecast as plain values for JSON."""
    rules = [
        rule._asdict()
        | {
            name: hours._asdict() if hours else None
            for name, hours in (("hours", rule.hours), ("at_most", rule.at_most))
        }
        for rule in found.rules
    ]
    estimate, bound = _sum(rule.hours for rule in found.rules), _sum(rule.at_most for rule in found.rules)
    return {
        "jobs": sum(rule.jobs for rule in found.rules),
        "rules": rules,
        "hours": estimate._asdict(),
        "at_most_without_record": bound._asdict(),
        "chain_seconds": found.chain_seconds,
    }


def text(found: Forecast) -> str:
    """Return a forecast as an aligned table with its totals, as wide as a terminal."""
    if not found.rules:
        return "Nothing to be done: every file is there and up to date.\n"
    rows = [_cells(rule) for rule in found.rules]
    estimate, bound = _sum(rule.hours for rule in found.rules), _sum(rule.at_most for rule in found.rules)
    n_jobs, n_records = sum(rule.jobs for rule in found.rules), sum(rule.records for rule in found.rules)
    known = sum(rule.jobs for rule in found.rules if rule.records)
    totals = (_hours(hours) for hours in (*estimate, *bound))
    rows.append(("total", str(n_jobs), "", str(n_records), *totals, ""))
    lines = _aligned(rows)
    if known:
        lines.append(
            f"\nEstimate for {known} of {n_jobs} jobs: {_hours(estimate.gpu)} GPU-hours, {_hours(estimate.cpu)} "
            f"CPU-core-hours; on any number of machines at least {_hours(found.chain_seconds / 3600)} hours."
        )
    without = n_jobs - known
    if without:
        lines.append(
            f"{'' if known else chr(10)}Upper bound for the {without} jobs of rules without record: "
            f"{_hours(bound.gpu)} GPU-hours, {_hours(bound.cpu)} CPU-core-hours, by their requested runtime."
        )
    unbounded = [rule.rule for rule in found.rules if rule.hours is None and rule.at_most is None]
    if unbounded:
        lines.append(f"Neither a record nor a requested runtime: {', '.join(unbounded)}.")
    return "\n".join(lines) + "\n"


class _Listener(logging.Filter):
    """Collects the jobs that Snakemake tells. A filter, because Snakemake replaces the handlers of its logger."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[PlannedJob] = []
        self._start, self._folder = Path.cwd(), Path()  # `--directory` moves Snakemake elsewhere for the while

    def filter(self, record: logging.LogRecord) -> bool:
        event = vars(record).get("event")
        if event == "workflow_started":
            self._folder = Path(os.path.relpath(vars(record)["rundir"], self._start))
        elif event == "job_info":
            self.jobs.append(_planned(vars(record), self._folder))
        return event not in ("job_info", "shellcmd")


@contextmanager
def _listening() -> Iterator[_Listener]:
    """Hear Snakemake's records, of which none reaches the handlers of this program; then all is as it was."""
    logger, listener = logging.getLogger(LOGGER), _Listener()
    propagates, on_termination = logger.propagate, signal.getsignal(signal.SIGTERM)
    logger.addFilter(listener)
    logger.propagate = False
    try:
        yield listener
    finally:
        logger.removeFilter(listener)
        logger.propagate = propagates
        signal.signal(signal.SIGTERM, on_termination)  # Snakemake's scheduler sets its own


def options_of(words: Sequence[str]) -> dict[str, Any]:
    """Return the options that Snakemake reads from words and profiles; empty for a fault, which the dry run tells."""
    from snakemake import cli

    with suppress(SystemExit, Exception), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        return dict(vars(cli.parse_args(list(words))[1]))
    return {}


def _refuse_deeds(options: Mapping[str, Any]) -> None:
    """Refuse options that make Snakemake do something else than plan, in part even with `--dry-run`."""
    asked = [f"--{name.replace('_', '-')}" for name in DEEDS if options.get(name)]
    if asked:
        raise ConfigError(
            "plan: expected words that say what would run", found=", ".join(asked), do="Leave them to Snakemake itself."
        )


def _planned(said: Mapping[str, Any], folder: Path) -> PlannedJob:
    resources = {name: value for name, value in said["resources"].items() if str(value) != "<TBD>"}
    return PlannedJob(
        rule=said["rule_name"],
        wildcards={name: str(value) for name, value in dict(said["wildcards"]).items()},
        reason=said["reason"],
        threads=int(said["threads"]),
        resources=resources,
        benchmark=str(folder / said["benchmark"]) if said["benchmark"] else "",
        inputs=tuple(str(folder / str(path)) for path in said["input"]),
        outputs=tuple(str(folder / str(path)) for path in said["output"]),
        command=said["shellcmd"] or "",
    )


def _forecast_rule(rule: str, jobs: Sequence[PlannedJob]) -> RuleForecast:
    recorded = {(record_pattern(job), _kind(job.resources.get("device"))): job for job in jobs if job.benchmark}
    seconds = [value for job in recorded.values() for value in recorded_seconds(job)]
    median = statistics.median(seconds) if seconds else None
    requested = [job.resources.get("runtime") for job in jobs]
    is_bounded = median is None and all(isinstance(minutes, int | float) for minutes in requested)
    return RuleForecast(
        rule=rule,
        jobs=len(jobs),
        why=_counted(map(why, jobs)),
        seconds=median,
        records=len(seconds),
        hours=None if median is None else _sum(_taken(job, median) for job in jobs),
        at_most=_sum(_taken(job, 60 * job.resources["runtime"]) for job in jobs) if is_bounded else None,
    )


def _taken(job: PlannedJob, seconds: float) -> Hours:
    hours = seconds / 3600
    return Hours(hours * _gpus(job), hours * job.threads)


def _gpus(job: PlannedJob) -> int:
    """Return a job's GPUs; on a machine without scheduler none is requested, and each process has one."""
    on_gpu = _kind(job.resources.get("device")) == "cuda"
    return gpus_of(job.resources) or (int(job.resources.get("processes") or 1) if on_gpu else 0)


def _longest_chain(jobs: Sequence[PlannedJob], seconds: Mapping[str, float]) -> float:
    """Return the seconds of the longest chain of jobs of which each needs the one before."""
    maker = {path: i for i, job in enumerate(jobs) for path in job.outputs}
    needs = {i: {maker[path] for path in job.inputs if path in maker} for i, job in enumerate(jobs)}
    ends: dict[int, float] = {}
    for i in TopologicalSorter(needs).static_order():
        ends[i] = seconds[jobs[i].rule] + max((ends[j] for j in needs[i]), default=0.0)
    return max(ends.values(), default=0.0)


def _kind(device: object) -> str:
    """Return the kind of a device: `cuda` of `cuda:0`; a rule without one computes on the CPU."""
    return str(device or "cpu").partition(":")[0]


def _seconds_in(path: Path) -> list[float]:
    """Return the seconds of a benchmark file; a line that is no record is passed over."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            found.append(float(json.loads(line)["s"]))
        except (ValueError, KeyError, TypeError):
            continue
    return [value for value in found if math.isfinite(value)]


def _read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file; empty where there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by dotted key."""
    if not isinstance(value, dict):
        return {prefix: value}
    leaves: dict[str, Any] = {}
    for key, inner in value.items():
        leaves |= _flat(inner, f"{prefix}.{key}" if prefix else key)
    return leaves


def _first(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - SHOWN_KEYS} more" if len(keys) > SHOWN_KEYS else ""
    return ", ".join(keys[:SHOWN_KEYS]) + more


def _counted(reasons: Iterable[str]) -> dict[str, int]:
    """Return how often each reason occurs; causes first, consequences last, then the frequent first."""
    last = {MISSING: 1, CONSEQUENCE: 2}
    counts = Counter(reasons)
    return {reason: counts[reason] for reason in sorted(counts, key=lambda r: (last.get(r, 0), -counts[r], r))}


def _sum(hours: Iterable[Hours | None]) -> Hours:
    known = [each for each in hours if each is not None]
    return Hours(sum(each.gpu for each in known), sum(each.cpu for each in known))


def _cells(rule: RuleForecast) -> tuple[str, ...]:
    reasons = [f"{n} {reason}" if len(rule.why) > 1 else reason for reason, n in rule.why.items()]
    seconds = "no record" if rule.seconds is None else f"{rule.seconds:,.1f}"
    hours = [_hours(value) for pair in (rule.hours, rule.at_most) for value in (pair or ("", ""))]
    return (rule.rule, str(rule.jobs), seconds, str(rule.records), *hours, "; ".join(reasons))


def _hours(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return "<0.01" if 0 < value < 0.005 else f"{value:,.2f}" if value else "0"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows under their heads, numbers to the right; the last column is wrapped."""
    widths = [max(map(len, column)) for column in zip(HEADS, *rows, strict=True)]
    lines = []
    for row in (HEADS, *rows):
        numbers = [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)]
        line = "  ".join([row[0].ljust(widths[0]), *numbers, ""])
        first, *more = textwrap.wrap(row[-1], max(SHORTEST_WHY, WIDTH - len(line))) or [""]
        lines += [(line + first).rstrip(), *(" " * len(line) + rest for rest in more)]
    return lines
