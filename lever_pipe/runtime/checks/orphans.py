"""Jobs that an earlier controller of this folder left in the queue: it was killed, and they go on writing its files."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import NoReturn

from lever_pipe.base.errors import ConfigError, PreflightError
from lever_pipe.runtime.checks.findings import Outcome, fault, ok
from lever_pipe.runtime.slurm import squeue as slurm

LOG = logging.getLogger(f"snakemake.logging.{__name__}")  # also in the run's own log file
VARIABLE = "LEVER_PIPE_ORPHANS"
"""Environment variable with the choice for a run."""
LOGS = Path(".snakemake/slurm_logs")
"""Where the executor plugin keeps its jobs' logs: a folder that has it was once run on SLURM."""
PREFIX = "lever_pipe"
"""Of the names of jobs under profiles/slurm."""
CHECK = "earlier jobs"
GONE_WITHIN = 300.0  # seconds that cancelled jobs may take to end
LOOK_EVERY = 5.0
TELL_EVERY = 60.0
SHOWN = 20
ANSWER = "an answer of squeue and scancel about jobs of an earlier run, which would write this run's files"
UNKNOWN = "Make sure that none is left, or start the run again when `scontrol ping` says UP."
DOWN = "Their node may be down: `scontrol show job ID` tells; wait for it or ask the administrators."
CHOOSE = (
    f"Let them end with {VARIABLE}=wait, or cancel them with {VARIABLE}=cancel (better before the run, so that it"
    " plans with what they made: python -m lever_pipe doctor --orphans wait|cancel). A run that was started here with"
    " --nolock may still own them."
)
COMMENTS = ("rule_", "group_")  # how the plugin's comments begin

Sleep = Callable[[float], None]
Complaint = Callable[..., Outcome]


class OnOrphans(StrEnum):
    """What to do about them."""

    REPORT = "report"
    WAIT = "wait"
    CANCEL = "cancel"


DOING = {OnOrphans.WAIT: "Waiting for", OnOrphans.CANCEL: "Cancelling"}


def choice(word: str | None = None) -> OnOrphans:
    """Return the choice named by `word` or else by the environment; to report, where neither says anything.

    Raises:
        ConfigError: another word.
    """
    given = word or os.environ.get(VARIABLE) or OnOrphans.REPORT
    try:
        return OnOrphans(given)
    except ValueError:
        raise ConfigError(
            f"{VARIABLE}: expected one of {', '.join(OnOrphans)}",
            found=repr(given),
            do="Name one of them, or unset it.",
        ) from None


def find(prefix: str, folder: Path) -> list[slurm.QueuedJob] | None:
    """Return this user's queued jobs that belong to this working directory; None when SLURM does not answer.

    Args:
        prefix: of the names of Snakemake's jobs; without one, the plugin's comment tells them from others.
        folder: the working directory.
    """
    queued = slurm.queued_jobs()
    if queued is None:
        return None
    own = own_ids()
    here = [job for job in queued if os.path.realpath(job.folder) == os.path.realpath(folder)]
    others = [job for job in here if job.id.partition("+")[0] not in own]  # + counts parts of a heterogeneous job
    return [job for job in others if _is_snakemakes(job, prefix)]


def own_ids() -> set[str]:
    """Return what `squeue` may call the SLURM job that this process itself runs in; empty outside of one."""
    found = {os.environ.get("SLURM_JOB_ID", "")}
    found.add(f"{os.environ.get('SLURM_ARRAY_JOB_ID', '')}_{os.environ.get('SLURM_ARRAY_TASK_ID', '')}")
    return found - {"", "_"}


def may_be_left(folder: Path) -> bool:
    """Tell, without a question, whether jobs of a run on SLURM could be left here: it had some, and has `squeue`."""
    return (folder / LOGS).exists() and shutil.which("squeue") is not None


def settle(
    chosen: OnOrphans, prefix: str, folder: Path, *, silence: Complaint = fault, sleep: Sleep = time.sleep
) -> Outcome:
    """Look for such jobs, and wait for them or cancel them if that was chosen.

    Without them this is one question to SLURM. With `wait` it lasts as long as they do.

    Args:
        chosen: what to do about them.
        prefix: of the names of Snakemake's jobs.
        folder: the working directory.
        silence: how grave it is that SLURM does not answer whether there are any.
        sleep: waits so many seconds between two looks.

    Raises:
        PreflightError: SIGTERM came meanwhile.
    """
    jobs = find(prefix, folder)
    if not jobs:
        return silence(CHECK, ANSWER, found="none", do=UNKNOWN) if jobs is None else ok(CHECK, "none in the queue")
    if chosen is OnOrphans.REPORT:
        return fault(
            CHECK,
            "no jobs of an earlier run of this folder in the queue: they write the files that this run would make",
            found=f"{len(jobs)}",
            do="\n    ".join([CHOOSE, *described(jobs)]),
        )
    # Whole messages: Snakemake's formatter does not fill in arguments.
    LOG.warning("\n  ".join([f"{DOING[chosen]} jobs that an earlier run left in the queue:", *described(jobs)]))
    if chosen is OnOrphans.CANCEL and not slurm.cancel([job.id for job in jobs]):
        return fault(CHECK, ANSWER, found="none", do=UNKNOWN)
    with ended_by_sigterm():
        left = _until_gone(prefix, folder, sleep=sleep, within=GONE_WITHIN if chosen is OnOrphans.CANCEL else None)
    if left:
        return fault(
            CHECK,
            f"cancelled jobs to end within {GONE_WITHIN:.0f} s",
            found=f"{len(left)} still there",
            do="\n    ".join([DOWN, *described(left)]),
        )
    return ok(CHECK, f"{len(jobs)} {'cancelled and gone' if chosen is OnOrphans.CANCEL else 'waited for'}")


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end what happens inside by an error, upon which Snakemake gives its lock back.

    Its own handler only makes a note for when jobs run. Elsewhere than in the main thread, which alone gets signals,
    nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)  # None: not set from Python


def _leave(number: int, frame: object) -> NoReturn:  # noqa: ARG001 (a handler's two arguments)
    raise PreflightError(
        f"{CHECK}: expected to wait until they have ended",
        found="SIGTERM meanwhile",
        do="Nothing was submitted. Start the run again when they have ended.",
    )


def described(jobs: list[slurm.QueuedJob]) -> list[str]:
    """Return a line a job: id, state, why it waits, and rule with wildcards."""
    lines = [f"{job.id}  {_state(job)}  {told(job.comment)}" for job in jobs[:SHOWN]]
    return [*lines, f"and {len(jobs) - SHOWN} more"] if len(jobs) > SHOWN else lines


def told(comment: str) -> str:
    """Return rule and wildcards of the plugin's comment `rule_NAME_wildcards_VALUES` in plain words."""
    rule, _, wildcards = comment.removeprefix("rule_").partition("_wildcards_")
    return f"{rule} ({wildcards})" if wildcards else rule


def _is_snakemakes(job: slurm.QueuedJob, prefix: str) -> bool:
    return job.name.startswith(f"{prefix}_") if prefix else job.comment.startswith(COMMENTS)


def _until_gone(prefix: str, folder: Path, *, sleep: Sleep, within: float | None) -> list[slurm.QueuedJob]:
    """Return the jobs that are left after `within` seconds; None waits for ever, also where SLURM does not answer."""
    waited, last = 0.0, find(prefix, folder)
    while (last is None or last) and (within is None or waited < within):
        if waited % TELL_EVERY == 0:
            LOG.warning(f"Waiting for earlier jobs: {'SLURM does not answer' if last is None else _counts(last)}")
        sleep(LOOK_EVERY)
        waited += LOOK_EVERY
        last = find(prefix, folder)
    return last or []


def _state(job: slurm.QueuedJob) -> str:
    return f"{job.state} ({job.reason})" if job.state == "PENDING" and job.reason != "None" else job.state


def _counts(jobs: list[slurm.QueuedJob]) -> str:
    states = [job.state for job in jobs]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
