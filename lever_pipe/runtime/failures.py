"""What one run of Snakemake finished, and what failed in it, with the last lines of its logs.

Snakemake tells its log handlers what happens to each job, however quiet it is towards the terminal. `Invocation` is
such a handler: it keeps the last state of every job, and reads the logs of those that failed, because the line that
says why stands in the log of the stage, or in SLURM's own, and not in the message.
"""

from __future__ import annotations

import io
import logging
import re
import shlex
import signal
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from snakemake_interface_logger_plugins.common import LogEvent

from lever_pipe.runtime import grid_plan
from lever_pipe.runtime.rerun.why_names import counted

LOGGER = "snakemake.logging"
WIDTH = 120
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
"""Ends that a larger request mends, and how."""
UNKEPT = " not kept: "
"""By what store and ledger say in a job's log that they have no room."""

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
_INTERRUPTED = ("Terminating processes on user request", "Will exit after finishing currently running jobs")


class FailedJob(NamedTuple):
    """A job whose last attempt failed: by which state or signal, if that is known, and its last lines."""

    rule: str
    wildcards: str
    job: int
    attempts: int
    ended: str
    lines: tuple[str, ...]
    log: str
    slurm_job: str
    slurm_log: str


_Key = tuple[str, frozenset[tuple[str, str]]]
_State = Literal["running", "finished", "failed"]


@dataclass(slots=True)
class _Job:
    """What is known of a job of the workflow; `logs` are the stage's and, behind them, SLURM's own."""

    rule: str
    wildcards: str = ""
    key: _Key = ("", frozenset())
    own_logs: Sequence[str] = ()
    state: _State = "running"
    attempts: int = 0
    started: float = 0.0
    message: str = ""
    fault: str = ""
    slurm_job: str = ""
    slurm_logs: Sequence[str] = ()


class Invocation(logging.Handler):
    """What happened to the jobs of this run so far."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.was_interrupted = False
        self._jobs: dict[int, _Job] = {}
        self._starved: Counter[_Key] = Counter()
        self._tells_ends = False
        self._faults: dict[int | None, str] = {}  # thread -> what Snakemake said there last about a fault
        self._events: dict[Any, Callable[[logging.LogRecord], None]] = {
            LogEvent.JOB_INFO: self._on_start,
            LogEvent.JOB_FINISHED: self._on_finish,
            LogEvent.ERROR: self._on_fault,
            LogEvent.GROUP_ERROR: self._on_group_error,
            LogEvent.JOB_ERROR: self._on_error,
        }

    def attach(self) -> None:
        """Listen to Snakemake's logger until Snakemake closes its log."""
        logging.getLogger(LOGGER).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Note what a record of Snakemake's logger says about a job."""
        try:
            on_event = self._events.get(vars(record).get("event"))
            if on_event is not None:
                on_event(record)
            elif record.getMessage().startswith(_INTERRUPTED):
                self.was_interrupted = True
        except Exception:  # noqa: BLE001 - a summary that cannot be made must not end the run
            self.handleError(record)

    @property
    def finished(self) -> int:
        """Return how many jobs finished."""
        return sum(map(self._is_finished, self._jobs.values()))

    @property
    def failed(self) -> list[FailedJob]:
        """Return the jobs whose last attempt failed, in the order of their ids."""
        return [_row(number, job) for number, job in sorted(self._jobs.items()) if job.state == "failed"]

    @property
    def retried(self) -> Counter[str]:
        """Return, by rule, how many jobs finished at a further attempt."""
        return Counter(job.rule for job in self._jobs.values() if job.attempts > 1 and self._is_finished(job))

    def starved(self, rule: str, wildcards: Mapping[str, str]) -> int:
        """Return how many attempts of a job ended for want of memory or time; 0 for a job that never began.

        Args:
            rule: its name.
            wildcards: a mapping, or Snakemake's own `Wildcards`.
        """
        return self._starved[_key(rule, wildcards)]

    def summary_of_failures(self) -> str:
        """Return the lines that end a failed run: the failed jobs, and how to go on."""
        rows = self.failed
        if not rows:
            cause = "the run was interrupted" if self.was_interrupted else "the lines above say why Snakemake ended"
            parts = [f"No job failed; {cause}."]
        else:
            parts = [f"{counted(len(rows), 'job')} failed:\n", *_lines(rows[:SHOWN])]
            if len(rows) > SHOWN:
                parts.append(f"... and {len(rows) - SHOWN} more; Snakemake's log names all of them")
        parts += ["", *self._rest()]
        return "\n".join(parts) + "\n"

    def summary_of_retries(self) -> str:
        """Return one line on the jobs that finished at a further attempt; empty where there are none."""
        retried = self.retried
        return (
            f"{counted(retried.total(), 'job')} finished at a further attempt: {_by_rule(retried)}" if retried else ""
        )

    def summary_of_unkept(self) -> str:
        """Return one line on what jobs could not keep in the store, by their logs; empty where all is kept."""
        logs = (_tail(path, job.started) for job in self._jobs.values() for path in job.own_logs[:1])
        said = [line for text in logs if (line := next((line for line in text.splitlines() if UNKEPT in line), ""))]
        cause = said[0].partition(UNKEPT)[2].strip() if said else ""
        return (
            f"{counted(len(said), 'job')} could not keep what they made or asked, and went on: {cause}" if said else ""
        )

    def _rest(self) -> list[str]:
        lines = [self.summary_of_retries(), self.summary_of_unkept(), f"{counted(self.finished, 'job')} finished."]
        lines = [line for text in lines if text for line in textwrap.wrap(text, WIDTH, subsequent_indent="  ")]
        return [*lines, f"What finished stays. To go on: {_command()}"]

    def _is_finished(self, job: _Job) -> bool:
        """Tell whether a job is done; under `--quiet progress` Snakemake tells of failures only."""
        return job.state == "finished" or (job.state == "running" and not self._tells_ends and not self.was_interrupted)

    def _on_start(self, record: logging.LogRecord) -> None:
        said = vars(record)
        job = self._job(said)
        wildcards = dict(said.get("wildcards") or {})
        told = {name: value for name, value in wildcards.items() if value != grid_plan.DOCUMENTS.get(name)}
        job.wildcards = ", ".join(f"{name}={value}" for name, value in told.items())
        job.key = _key(job.rule, wildcards)
        job.own_logs = [str(path) for path in said.get("log") or ()]
        job.state, job.started, job.attempts = "running", record.created, job.attempts + 1
        job.message = job.fault = job.slurm_job = ""
        job.slurm_logs = ()

    def _on_finish(self, record: logging.LogRecord) -> None:
        self._tells_ends = True
        job = self._jobs.get(vars(record)["job_id"])
        if job is not None:
            job.state = "finished"

    def _on_fault(self, record: logging.LogRecord) -> None:
        """Keep the fault for the error of a job that the same thread tells next, or for the job that it names."""
        text = record.getMessage()
        named = _OF_JOB.search(text)
        if named is None:
            self._faults[record.thread] = text
        elif int(named[1]) in self._jobs:
            job = self._jobs[int(named[1])]
            job.state, job.fault = "failed", text[named.start() :]

    def _on_group_error(self, record: logging.LogRecord) -> None:
        """Note what a group's jobs share; the errors of the jobs follow without it."""
        said = vars(record)
        for info in said.get("job_error_info") or ():
            job = self._job(info)
            job.message = f"the group {said.get('groupid')} failed, of which it is a part"
            job.slurm_job = str((info.get("aux") or {}).get("external_jobid") or job.slurm_job)
            job.slurm_logs = [str(path) for path in said.get("aux_logs") or () if path]

    def _on_error(self, record: logging.LogRecord) -> None:
        said = vars(record)
        job = self._job(said)
        job.state = "failed"
        job.attempts = max(1, job.attempts)
        job.message = _ADVICE.sub("", str(said.get("rule_msg") or job.message))
        fault = self._faults.pop(record.thread, "")
        job.fault = "" if said.get("rule_msg") else fault  # a job of a cluster ends elsewhere, not in this thread
        job.slurm_job = str((said.get("aux") or {}).get("external_jobid") or job.slurm_job)
        further = [str(path) for path in said.get("log") or () if path and path not in job.own_logs]
        job.slurm_logs = further or job.slurm_logs
        if _ended(job) in STARVED:
            self._starved[job.key] += 1

    def _job(self, said: Mapping[str, Any]) -> _Job:
        return self._jobs.setdefault(said["jobid"], _Job(said["rule_name"]))


def _row(number: int, job: _Job) -> FailedJob:
    log = str(next(iter(job.own_logs), ""))
    slurm_log = str(next(iter(job.slurm_logs), "")).removeprefix(f"{Path.cwd()}/")
    ended, lines = _ended(job), tuple(_last_lines(job))
    return FailedJob(job.rule, job.wildcards, number, job.attempts, ended, lines, log, job.slurm_job, slurm_log)


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


def _lines(rows: Sequence[FailedJob]) -> list[str]:
    """Return the rows as an aligned table; lines of logs are cut to the width, paths stay whole to be copied."""
    heads = ("job", "rule", "wildcards", "attempts")
    cells = [(str(row.job), row.rule, row.wildcards, str(row.attempts)) for row in rows]
    number, rule, wildcards = (max(map(len, column)) for column in list(zip(heads, *cells, strict=True))[:3])
    wildcards = min(wildcards, WIDTH - number - rule - len(heads[3]) - 6)
    indent = " " * (number + 2)

    def line(cell: Sequence[str]) -> str:
        shown = cell[2] if len(cell[2]) <= wildcards else f"{cell[2][: wildcards - 3]}..."
        return f"{cell[0]:>{number}}  {cell[1]:<{rule}}  {shown:<{wildcards}}  {cell[3]:>{len(heads[3])}}".rstrip()

    lines = [line(heads)]
    for row, cell in zip(rows, cells, strict=True):
        remedy = f": {STARVED[row.ended]}" if row.ended in STARVED else ""
        told = (f"{row.ended}{remedy}", *row.lines) if row.ended else row.lines
        lines.append(line(cell))
        lines += [indent + textwrap.shorten(text, WIDTH - len(indent), placeholder=" ...") for text in told]
        if row.log:
            lines.append(f"{indent}log: {row.log}" + ("" if Path(row.log).exists() else " (not written)"))
        if row.slurm_job:
            lines.append(f"{indent}SLURM job {row.slurm_job}" + (f": {row.slurm_log}" if row.slurm_log else ""))
    return lines


def _by_rule(counts: Counter[str]) -> str:
    return ", ".join(f"{rule} {n}" for rule, n in sorted(counts.items()))


def _command() -> str:
    """Return the command of this run as it would be typed."""
    first = Path(sys.argv[0])
    program = ["python", "-m", "snakemake"] if first.name == "__main__.py" else [first.name]
    return shlex.join([*program, *sys.argv[1:]])
