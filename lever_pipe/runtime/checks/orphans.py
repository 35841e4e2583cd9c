"""Jobs that an earlier controller of this folder left in the queue: it was killed, and they go on writing its files."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from lever_pipe.base.errors import ConfigError
from lever_pipe.runtime.checks.findings import Outcome, fault, ok
from lever_pipe.runtime.slurm import squeue as slurm

LOG = logging.getLogger(f"snakemake.logging.{__name__}")  # also in the run's own log file
VARIABLE = "LEVER_PIPE_ORPHANS"
"""Environment variable with the choice for a run."""
REPORT, WAIT, CANCEL = CHOICES = ("report", "wait", "cancel")
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
    f"Let them end with {VARIABLE}=wait, or cancel them with {VARIABLE}=cancel (better before `lever-pipe "
    "doctor` than before the run, so that it plans with what they made)."
)
COMMENTS = ("rule_", "group_")  # how the plugin's comments begin


def choice() -> str:
    """Return the choice that the environment names; to report, where it says nothing.

    Raises:
        ConfigError: another word.
    """
    given = os.environ.get(VARIABLE) or REPORT
    if given not in CHOICES:
        do = "Name one of them, or unset it."
        raise ConfigError(f"{VARIABLE}: expected one of {', '.join(CHOICES)}", found=repr(given), do=do)
    return given


def find(prefix: str, folder: Path) -> list[slurm.QueuedJob] | None:
    """Return this user's queued jobs that belong to this working directory; None when SLURM does not answer.

    The job that this process itself runs in is none of them.

    Args:
        prefix: of the names of Snakemake's jobs; without one, the plugin's comment tells them from others.
        folder: the working directory.
    """
    queued, own = slurm.queued_jobs(), os.environ.get("SLURM_JOB_ID", "")
    if queued is None:
        return None
    return [
        job
        for job in queued
        if os.path.realpath(job.folder) == os.path.realpath(folder)
        and job.id.partition("+")[0] != own  # + counts parts of a heterogeneous job
        and (job.name.startswith(f"{prefix}_") if prefix else job.comment.startswith(COMMENTS))
    ]


def may_be_left(folder: Path) -> bool:
    """Tell, without a question, whether jobs of a run on SLURM could be left here: it had some, and has `squeue`."""
    return (folder / LOGS).exists() and shutil.which("squeue") is not None


def settle(
    chosen: str,
    prefix: str,
    folder: Path,
    *,
    silence: Callable[..., Outcome] = fault,
    sleep: Callable[[float], None] = time.sleep,
) -> Outcome:
    """Look for such jobs, and wait for them or cancel them if that was chosen.

    Args:
        chosen: what to do about them.
        prefix: of the names of Snakemake's jobs.
        folder: the working directory.
        silence: how grave it is that SLURM does not answer whether there are any.
        sleep: waits so many seconds between two looks.
    """
    jobs = find(prefix, folder)
    if not jobs:
        return silence(CHECK, ANSWER, found="none", do=UNKNOWN) if jobs is None else ok(CHECK, "none in the queue")
    told = "\n    ".join(described(jobs))
    if chosen == REPORT:
        expected = "no jobs of an earlier run of this folder in the queue, as they write this run's files"
        return fault(CHECK, expected, found=f"{len(jobs)}", do=f"{CHOOSE}\n    {told}")
    LOG.warning(f"Jobs that an earlier run left in the queue ({chosen}):\n    {told}")
    if chosen == CANCEL and not slurm.cancel([job.id for job in jobs]):
        return fault(CHECK, ANSWER, found="none", do=UNKNOWN)
    waited = 0.0
    while (left := find(prefix, folder)) != [] and (chosen == WAIT or waited < GONE_WITHIN):
        if waited % TELL_EVERY == 0:
            LOG.warning(f"Waiting for earlier jobs: {'SLURM does not answer' if left is None else len(left)}")
        sleep(LOOK_EVERY)
        waited += LOOK_EVERY
    if left:
        found, told = f"{len(left)} still there", "\n    ".join(described(left))
        return fault(CHECK, f"cancelled jobs to end within {GONE_WITHIN:.0f} s", found=found, do=f"{DOWN}\n    {told}")
    return ok(CHECK, f"{len(jobs)} {'cancelled and gone' if chosen == CANCEL else 'waited for'}")


def described(jobs: list[slurm.QueuedJob]) -> list[str]:
    """Return a line a job: id, state, and rule with wildcards."""
    lines = []
    for job in jobs[:SHOWN]:
        rule, _, wildcards = job.comment.removeprefix("rule_").partition("_wildcards_")
        lines.append(f"{job.id}  {job.state}  {rule}" + (f" ({wildcards})" if wildcards else ""))
    return [*lines, f"and {len(jobs) - SHOWN} more"] if len(jobs) > SHOWN else lines
