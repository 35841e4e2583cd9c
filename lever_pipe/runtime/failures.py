"""The failed jobs that end a run, with the last lines of their logs.

Snakemake's log handlers receive every event of a job, even if the terminal's output is reduced. `Failures` is such a
handler. It reads the logs of failed jobs, because the reason of a failure is in the stage's or SLURM's log and not in
Snakemake's message. It is no logger plugin: plugins must be named in the profile and receive events later, in their own
thread. That would be too late for `onerror`, which prints the summary.
"""

from __future__ import annotations

import io
import logging
import re
import signal
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snakemake_interface_logger_plugins.common import LogEvent

from lever_pipe.base.errors import counted
from lever_pipe.experiment.plans import grid

WIDTH, INDENT = 120, "    "
DISPLAY_LIMIT, LINES = 20, 3
"""Number of failed jobs in the summary, and of log lines for each."""
TAIL_BYTES = 65_536
SLACK_SECONDS = 60
"""Tolerated clock difference between nodes when a log is assigned to an attempt."""

STATES = ("TIMEOUT", "OUT_OF_MEMORY", "CANCELLED", "DEADLINE", "NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "PREEMPTED")
"""SLURM end states that explain a failure better than the log."""
STARVED = {
    "TIMEOUT": "raise its runtime in the profile",
    "OUT_OF_MEMORY": "raise its mem_mb in the profile",
    "SIGKILL": "mostly for want of memory: raise its mem_mb in the profile",
}
"""End states that a larger resource request fixes -> advice."""

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


@dataclass(slots=True)
class FailedJob:
    """The last attempt of a job; `slurm_logs` are SLURM's own logs, without the stage's."""

    rule: str
    wildcards: str = ""
    logs: Sequence[str] = ()
    failed: bool = False
    attempts: int = 0
    started: float = 0.0
    message: str = ""
    problem: str = ""
    slurm_job: str = ""
    slurm_logs: Sequence[str] = ()

    @property
    def ended(self) -> str:
        """Return the SLURM state or signal that ended the last attempt; empty if the log explains more."""
        if _REFUSED in self.message:
            return ""
        of_slurm = self._tails(self.slurm_logs)
        # SLURM's log is more specific than the state that Snakemake reports, so it has precedence.
        match, due_to = _STATE.search(self.message), _DUE_TO.search(of_slurm)
        state = _DUE[due_to[1]] if due_to else match[1] if match else ""
        if state in STATES:
            return state
        return "OUT_OF_MEMORY" if _NO_MEMORY.search(of_slurm) else _signal(self.problem or of_slurm)

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the last lines of the stage's log, else SLURM's log, else Snakemake's message."""
        is_of_command = not self.problem or _STATUS.search(self.problem) or _SIGNALLED.search(self.problem)
        has_logs = is_of_command and _REFUSED not in self.message
        logged = (self._tails(self.logs).strip() or self._tails(self.slurm_logs).strip()) if has_logs else ""
        lines = map(str.strip, (logged or self.problem or self.message).splitlines())
        return tuple(line for line in lines if line)[-LINES:]

    def _tails(self, paths: Sequence[str]) -> str:
        """Return the last part of the logs of this attempt."""
        return "".join(tail_of(path, self.started) for path in paths)


class Failures(logging.Handler):
    """A log handler that collects the failed jobs of this run."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._jobs: dict[int, FailedJob] = {}
        self._problems: dict[int | None, str] = {}  # thread -> its last error message
        self._events: dict[Any, Callable[[logging.LogRecord], None]] = {
            LogEvent.JOB_INFO: self._on_start,
            LogEvent.ERROR: self._on_problem,
            LogEvent.JOB_ERROR: self._on_error,
        }

    def attach(self) -> None:
        """Add this handler to Snakemake's logger."""
        logging.getLogger("snakemake.logging").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Record the event of a job."""
        try:
            if on_event := self._events.get(vars(record).get("event")):
                on_event(record)
        except Exception:  # noqa: BLE001 - a summary that cannot be made must not end the run
            self.handleError(record)

    @property
    def failed(self) -> list[FailedJob]:
        """Return the jobs whose last attempt failed, in the order of their ids."""
        return [job for _, job in sorted(self._jobs.items()) if job.failed]

    def summary(self, *, but: str | None = None) -> str:
        """Return the closing lines of a failed run, without jobs that ended by the user's signal `but`."""
        jobs = [job for job in self.failed if not but or job.ended != but]
        if not jobs:
            return "" if but else "No job failed; the lines above say why the run ended.\n"
        lines = [
            f"{counted(len(jobs), 'job')} failed:",
            *(line for job in jobs[:DISPLAY_LIMIT] for line in _lines_of(job)),
        ]
        if len(jobs) > DISPLAY_LIMIT:
            lines.append(f"... and {len(jobs) - DISPLAY_LIMIT} more; Snakemake's log names all of them")
        return "\n".join([*lines, "Finished results are kept; the same command continues the run."]) + "\n"

    def _on_start(self, record: logging.LogRecord) -> None:
        event = vars(record)
        job = self._job(event)
        wildcards = dict(event.get("wildcards") or {}).items()
        words = [f"{name}={value}" for name, value in wildcards if value != grid.DOCUMENTS.get(name)]
        job.wildcards = ", ".join(words)
        job.logs = [str(path) for path in event.get("log") or ()]
        # A retry: forget the previous attempt, because only the last one decides whether the job failed.
        job.failed, job.started, job.attempts = False, record.created, job.attempts + 1
        job.message = job.problem = job.slurm_job = ""
        job.slurm_logs = ()

    def _on_problem(self, record: logging.LogRecord) -> None:
        """Keep an error message for the job that it names, or for the next job error of the same thread."""
        # A local job's exception and its JOB_ERROR are two records, with only the thread in common.
        text = record.getMessage()
        match = _OF_JOB.search(text)
        if match is None:
            self._problems[record.thread] = text
        elif int(match[1]) in self._jobs:
            job = self._jobs[int(match[1])]
            job.failed, job.problem = True, text[match.start() :]

    def _on_error(self, record: logging.LogRecord) -> None:
        event = vars(record)
        job = self._job(event)
        job.failed = True
        job.attempts = max(1, job.attempts)
        job.message = _ADVICE.sub("", str(event.get("rule_msg") or ""))
        problem = self._problems.pop(record.thread, "")
        # Only cluster jobs have a message. They do not fail in this thread, so its last error is not theirs.
        job.problem = "" if event.get("rule_msg") else problem
        job.slurm_job = str((event.get("aux") or {}).get("external_jobid") or job.slurm_job)
        further = [str(path) for path in event.get("log") or () if path and path not in job.logs]
        job.slurm_logs = further or job.slurm_logs

    def _job(self, event: Mapping[str, Any]) -> FailedJob:
        return self._jobs.setdefault(event["jobid"], FailedJob(event["rule_name"]))


def _signal(text: str) -> str:
    """Return the name of the signal that ended a command, from its own status or a shell's (128 plus the number)."""
    match, status = _SIGNALLED.search(text), _STATUS.search(text)
    number = int(status[1]) - 128 if status else 0
    return match[1] if match else next((s.name for s in signal.Signals if s == number), "")


def tail_of(path: str, started: float) -> str:
    """Return the last part of an attempt's log; empty without a log, or if only an earlier attempt wrote it.

    Args:
        path: the log.
        started: start of the attempt, in seconds since the epoch.
    """
    try:
        with Path(path).open("rb") as handle:
            size = handle.seek(0, io.SEEK_END)
            handle.seek(max(0, size - TAIL_BYTES))
            text = handle.read().decode(errors="replace")
    except OSError:
        return ""
    return text if is_of_attempt(path, started) else ""


def is_of_attempt(path: str, started: float) -> bool:
    """Return whether an attempt with this start time wrote to a log, rather than only earlier attempts."""
    try:
        return Path(path).stat().st_mtime >= started - SLACK_SECONDS
    except OSError:
        return False


def _lines_of(job: FailedJob) -> Iterator[str]:
    """Yield a failed job's lines; log lines are cut to the width, but paths are not, so that they can be copied."""
    yield f"{job.rule}  {job.wildcards}  attempts: {job.attempts}"
    state = job.ended
    notes = [f"{state}: {STARVED[state]}" if state in STARVED else state] if state else []
    for text in (*notes, *job.lines):
        yield INDENT + textwrap.shorten(text, WIDTH - len(INDENT), placeholder=" ...")
    for log in job.logs[:1]:
        yield f"{INDENT}log: {log}"
    if job.slurm_job:
        log = str(next(iter(job.slurm_logs), "")).removeprefix(f"{Path.cwd()}/")
        yield f"{INDENT}SLURM job {job.slurm_job}: {log}".removesuffix(": ")
