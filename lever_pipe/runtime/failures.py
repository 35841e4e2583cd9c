"""The failed jobs that end a run, with the last lines of their logs, and what starved.

Snakemake tells its log handlers what happens to each job, however quiet it is towards the terminal. `Failures` is one:
it reads the logs of failed jobs, because the line that says why stands in the log of the stage, or in SLURM's own, and
not in the message. It is no logger plugin: those hear later, in their own thread, and where the profile names them;
but the next attempt of a job asks here how much memory it needs, and `onerror` prints what was heard by then.
"""

from __future__ import annotations

import io
import logging
import re
import signal
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from snakemake_interface_logger_plugins.common import LogEvent

from lever_pipe.runtime import grid_plan
from lever_pipe.runtime.rerun.why_names import counted

WIDTH, INDENT = 120, "    "
SHOWN, LINES = 20, 3
"""Failed jobs that are shown, each with so many lines of its log."""
TAIL_BYTES = 65_536
SLACK_SECONDS = 60
"""By how much the clocks of the nodes may differ when a log is taken to be of this attempt."""

STATES = ("TIMEOUT", "OUT_OF_MEMORY", "CANCELLED", "DEADLINE", "NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "PREEMPTED")
"""End states in SLURM that say more than any log."""
STARVED = {
    "TIMEOUT": "raise its runtime in the profile",
    "OUT_OF_MEMORY": "raise its mem_mb in the profile",
    "SIGKILL": "mostly for want of memory: raise its mem_mb in the profile",
}
"""Ends that a larger request fixes, and how."""

_STATE = re.compile(r"(?:status is: '|ended as )([A-Z_]+)")
_REFUSED = "sbatch failed."
_OF_JOB = re.compile(r"^Job (\d+) ", re.M)
_SIGNALLED = re.compile(r"died with <Signals\.(\w+): \d+>")
_STATUS = re.compile(r"returned non-zero exit status (\d+)")
_DUE_TO = re.compile(r"CANCELLED AT \S+ DUE TO (TIME LIMIT|PREEMPTION|NODE FAILURE)")
_DUE = {"TIME LIMIT": "TIMEOUT", "PREEMPTION": "PREEMPTED", "NODE FAILURE": "NODE_FAIL"}
_NO_MEMORY = re.compile(r"^slurmstepd.*(?:oom.?kill|memory limit)", re.M | re.I)
_ADVICE = re.compile(
    r"\s*(?:Detailed failure reason unavailable|For further error details see the cluster/cloud).*", re.S
)


class FailedJob(NamedTuple):
    """A job whose last attempt failed: by which state or signal, if that is known, and its last lines."""

    rule: str
    wildcards: str
    attempts: int
    ended: str
    lines: tuple[str, ...]
    log: str
    slurm_job: str
    slurm_log: str


_Key = tuple[str, frozenset[tuple[str, str]]]


@dataclass(slots=True)
class _Job:
    """What is known of a job of the workflow; `logs` are the stage's and, behind them, SLURM's own."""

    rule: str
    wildcards: str = ""
    key: _Key = ("", frozenset())
    own_logs: Sequence[str] = ()
    failed: bool = False
    attempts: int = 0
    started: float = 0.0
    message: str = ""
    fault: str = ""
    slurm_job: str = ""
    slurm_logs: Sequence[str] = ()


class Failures(logging.Handler):
    """Which jobs of this run failed so far."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._jobs: dict[int, _Job] = {}
        self._starved: Counter[_Key] = Counter()
        self._faults: dict[int | None, str] = {}  # thread -> what Snakemake said there last about a fault
        self._events: dict[Any, Callable[[logging.LogRecord], None]] = {
            LogEvent.JOB_INFO: self._on_start,
            LogEvent.ERROR: self._on_fault,
            LogEvent.JOB_ERROR: self._on_error,
        }

    def attach(self) -> None:
        """Listen to Snakemake's logger until Snakemake closes its log."""
        logging.getLogger("snakemake.logging").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Note what a record of Snakemake's logger says about a job."""
        try:
            if on_event := self._events.get(vars(record).get("event")):
                on_event(record)
        except Exception:  # noqa: BLE001 - a summary that cannot be made must not end the run
            self.handleError(record)

    @property
    def failed(self) -> list[FailedJob]:
        """Return the jobs whose last attempt failed, in the order of their ids."""
        return [_row(job) for _, job in sorted(self._jobs.items()) if job.failed]

    def starved(self, rule: str, wildcards: Mapping[str, str]) -> int:
        """Return how many attempts of a job ended for want of memory or time; 0 for a job that never began.

        Args:
            rule: its name.
            wildcards: a mapping, or Snakemake's own `Wildcards`.
        """
        return self._starved[_key(rule, wildcards)]

    def summary(self) -> str:
        """Return the lines that end a failed run."""
        rows = self.failed
        if not rows:
            return "No job failed; the lines above say why the run ended.\n"
        lines = [f"{counted(len(rows), 'job')} failed:", *(line for row in rows[:SHOWN] for line in _lines(row))]
        if len(rows) > SHOWN:
            lines.append(f"... and {len(rows) - SHOWN} more; Snakemake's log names all of them")
        return "\n".join([*lines, "What finished stays; the same command goes on."]) + "\n"

    def _on_start(self, record: logging.LogRecord) -> None:
        said = vars(record)
        job = self._job(said)
        wildcards = dict(said.get("wildcards") or {})
        told = {name: value for name, value in wildcards.items() if value != grid_plan.DOCUMENTS.get(name)}
        job.wildcards = ", ".join(f"{name}={value}" for name, value in told.items())
        job.key = _key(job.rule, wildcards)
        job.own_logs = [str(path) for path in said.get("log") or ()]
        job.failed, job.started, job.attempts = False, record.created, job.attempts + 1
        job.message = job.fault = job.slurm_job = ""
        job.slurm_logs = ()

    def _on_fault(self, record: logging.LogRecord) -> None:
        """Keep the fault for the error of a job that the same thread tells next, or for the job that it names."""
        text = record.getMessage()
        named = _OF_JOB.search(text)
        if named is None:
            self._faults[record.thread] = text
        elif int(named[1]) in self._jobs:
            job = self._jobs[int(named[1])]
            job.failed, job.fault = True, text[named.start() :]

    def _on_error(self, record: logging.LogRecord) -> None:
        said = vars(record)
        job = self._job(said)
        job.failed = True
        job.attempts = max(1, job.attempts)
        job.message = _ADVICE.sub("", str(said.get("rule_msg") or ""))
        fault = self._faults.pop(record.thread, "")
        job.fault = "" if said.get("rule_msg") else fault  # a job of a cluster ends elsewhere, not in this thread
        job.slurm_job = str((said.get("aux") or {}).get("external_jobid") or job.slurm_job)
        further = [str(path) for path in said.get("log") or () if path and path not in job.own_logs]
        job.slurm_logs = further or job.slurm_logs
        if _ended(job) in STARVED:
            self._starved[job.key] += 1

    def _job(self, said: Mapping[str, Any]) -> _Job:
        return self._jobs.setdefault(said["jobid"], _Job(said["rule_name"]))


def _row(job: _Job) -> FailedJob:
    log = str(next(iter(job.own_logs), ""))
    slurm_log = str(next(iter(job.slurm_logs), "")).removeprefix(f"{Path.cwd()}/")
    ended, lines = _ended(job), tuple(_last_lines(job))
    return FailedJob(job.rule, job.wildcards, job.attempts, ended, lines, log, job.slurm_job, slurm_log)


def _key(rule: str, wildcards: Mapping[str, str]) -> _Key:
    return rule, frozenset((name, str(value)) for name, value in wildcards.items())


def _logs_of(job: _Job) -> tuple[str, str]:
    """Return the ends of the stage's log and of SLURM's own."""
    own, of_slurm = ("".join(_tail(path, job.started) for path in paths) for paths in (job.own_logs, job.slurm_logs))
    return own, of_slurm


def _ended(job: _Job) -> str:
    """Return the state or signal by which a job's last attempt ended; empty where its log says more."""
    if _REFUSED in job.message:
        return ""
    _, of_slurm = _logs_of(job)
    ended, due_to = _STATE.search(job.message), _DUE_TO.search(of_slurm)  # its own log knows more than its state
    state = _DUE[due_to[1]] if due_to else ended[1] if ended else ""
    if state in STATES:
        return state
    return "OUT_OF_MEMORY" if _NO_MEMORY.search(of_slurm) else _signal(job.fault or of_slurm)


def _signal(text: str) -> str:
    """Return by which signal a command ended, told by its status: its own, or as a shell puts it (128 and more)."""
    named, status = _SIGNALLED.search(text), _STATUS.search(text)
    number = int(status[1]) - 128 if status else 0
    return named[1] if named else next((s.name for s in signal.Signals if s == number), "")


def _last_lines(job: _Job) -> list[str]:
    """Return the last lines of the stage's log, or of SLURM's, or what Snakemake says where these are not to blame."""
    own, of_slurm = _logs_of(job)
    is_of_command = not job.fault or _STATUS.search(job.fault) or _SIGNALLED.search(job.fault)
    logged = (own.strip() or of_slurm.strip()) if is_of_command and _REFUSED not in job.message else ""
    lines = (logged or job.fault or job.message).splitlines()
    return [line.strip() for line in lines if line.strip()][-LINES:]


def _tail(path: str, started: float) -> str:
    """Return the end of a log of an attempt that started then; empty where there is none, or only an earlier one."""
    try:
        with Path(path).open("rb") as handle:
            size = handle.seek(0, io.SEEK_END)
            handle.seek(max(0, size - TAIL_BYTES))
            text = handle.read().decode(errors="replace")
        return text if Path(path).stat().st_mtime >= started - SLACK_SECONDS else ""
    except OSError:
        return ""


def _lines(row: FailedJob) -> Iterator[str]:
    """Yield what is told of a failed job; lines of logs are cut to the width, paths stay whole to be copied."""
    yield f"{row.rule}  {row.wildcards}  attempts: {row.attempts}"
    ended = [f"{row.ended}: {STARVED[row.ended]}" if row.ended in STARVED else row.ended] if row.ended else []
    for text in (*ended, *row.lines):
        yield INDENT + textwrap.shorten(text, WIDTH - len(INDENT), placeholder=" ...")
    if row.log:
        yield f"{INDENT}log: {row.log}"
    if row.slurm_job:
        yield f"{INDENT}SLURM job {row.slurm_job}: {row.slurm_log}".removesuffix(": ")
