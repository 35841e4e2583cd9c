"""SLURM queries. Each has a time limit, and returns None if SLURM does not answer."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

MARK = "\x1f"  # field separator; occurs in no name, folder or comment
ANSWER_WITHIN = 20.0  # seconds
USERS_OWN = re.compile(r"S(QUEUE|INFO|ACCT|CONTROL)_")  # user settings that would filter or reformat an answer
FORGOTTEN = "Invalid job id"
UNFINISHED = {"PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "RESIZING", "COMPLETING", "CONFIGURING"}


class QueuedJob(NamedTuple):
    """A job in the queue; all jobs of one Snakemake run share a name, and a comment has the rule and its wildcards."""

    id: str
    state: str
    name: str
    comment: str
    folder: str


def run(*command: str, timeout: float = ANSWER_WITHIN) -> str | None:
    """Return the output of a SLURM command; None when it fails, is missing or takes longer than `timeout` seconds."""
    reply = ask(*command, timeout=timeout)
    return reply.stdout if reply and reply.returncode == 0 else None


def ask(*command: str, timeout: float = ANSWER_WITHIN) -> subprocess.CompletedProcess[str] | None:
    """Return output, error text and exit status; None when the command is missing or takes longer than `timeout`."""
    environment = {name: value for name, value in os.environ.items() if not USERS_OWN.match(name)}
    nothing = subprocess.DEVNULL
    with suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(
            command, timeout=timeout, env=environment, stdin=nothing, capture_output=True, text=True, errors="replace"
        )
    return None


def queued_jobs() -> list[QueuedJob] | None:
    """Return this user's pending, running and completing jobs."""
    form = MARK.join(("%i", "%T", "%j", "%k", "%Z"))
    answer = run("squeue", "--noheader", f"--user={os.getuid()}", f"--format={form}")
    return None if answer is None else [QueuedJob(*row) for row in _rows(answer, len(QueuedJob._fields))]


def states_of(name: str) -> dict[str, str] | None:
    """Return id -> state of all jobs of this name in the controller's memory, including finished ones."""
    answer = run("squeue", "--noheader", "--states=all", f"--name={name}", f"--format=%i{MARK}%T")
    return None if answer is None else {row[0]: row[1] for row in _rows(answer, 2)}


def comments_of(name: str) -> dict[str, str] | None:
    """Return id -> comment of all jobs of this name in the controller's memory, including finished ones."""
    answer = run("squeue", "--noheader", "--states=all", f"--name={name}", f"--format=%i{MARK}%k")
    return None if answer is None else {row[0]: row[1] for row in _rows(answer, 2)}


def state_of(job_id: str) -> str | None:
    """Return the state of one job from the controller or, if it has dropped the job's record, from the accounting.

    Returns:
        "" for an unknown job. A job whose record the controller has dropped does not run, so a state such as RUNNING
        in the accounting counts as unknown.
    """
    reply = ask("squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T")
    if reply is None or (reply.returncode and FORGOTTEN not in reply.stderr):
        return None
    if reply.returncode == 0 and reply.stdout.strip():
        return reply.stdout.split()[0]
    configured = settings()  # sacct needs slurmdbd
    if configured is None:
        return None
    if configured.get("AccountingStorageType") != "accounting_storage/slurmdbd":
        return ""
    answer = run("sacct", "--allocations", "--noheader", "--parsable2", "--format=State", f"--jobs={job_id}")
    if answer is None:
        return None
    state = (answer.split() or [""])[0]  # "CANCELLED by 0" is CANCELLED
    return "" if state in UNFINISHED else state


def settings() -> dict[str, str] | None:
    """Return the controller's configuration, values as SLURM prints them."""
    answer = run("scontrol", "show", "config")
    if answer is None:
        return None
    pairs = (line.partition("=") for line in answer.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def seconds(value: str) -> int | None:
    """Parse a setting such as `300 sec`; return None if it does not start with a number."""
    digits = re.match(r"\d+", value)
    return int(digits[0]) if digits else None


def cancel(job_id: str) -> None:
    """Ask SLURM to cancel a job."""
    run("scancel", job_id)


def _rows(answer: str, width: int) -> Iterator[list[str]]:
    for line in answer.split("\n"):
        row = [field.strip() for field in line.split(MARK)]
        if len(row) == width:
            yield ["" if field == "(null)" else field for field in row]
