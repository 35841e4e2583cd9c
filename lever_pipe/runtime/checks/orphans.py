"""Jobs that an earlier controller of this folder left in the queue: it was killed, and they go on writing its files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from lever_pipe.runtime.checks.findings import Outcome, ok, problem
from lever_pipe.runtime.slurm import squeue as slurm

LOGS = Path(".snakemake/slurm_logs")
"""Where the executor plugin keeps its jobs' logs: a folder that has it was once run on SLURM."""
PREFIX = "lever_pipe"
"""Of the names of jobs under profiles/slurm."""
CHECK = "earlier jobs"
DISPLAY_LIMIT = 20
ANSWER = "an answer of squeue about jobs of an earlier run, which would write this run's files"
UNKNOWN = "Make sure that none is left, or start the run again when `scontrol ping` says UP."
COMMENTS = ("rule_", "group_")  # how the plugin's comments begin


def find(prefix: str, folder: Path) -> list[slurm.QueuedJob] | None:
    """Return this user's queued jobs that belong to this working directory; None when SLURM does not answer.

    The job that this process itself runs in is none of them.

    Args:
        prefix: of the names of Snakemake's jobs; without one, the plugin's comment tells them from others.
        folder: the working directory.
    """
    queued, this_job = slurm.queued_jobs(), os.environ.get("SLURM_JOB_ID", "")
    if queued is None:
        return None
    return [
        job
        for job in queued
        if os.path.realpath(job.folder) == os.path.realpath(folder)
        and job.id.partition("+")[0] != this_job  # + counts parts of a heterogeneous job
        and (job.name.startswith(f"{prefix}_") if prefix else job.comment.startswith(COMMENTS))
    ]


def may_be_left(folder: Path) -> bool:
    """Tell, without a question, whether jobs of a run on SLURM could be left here: it had some, and has `squeue`."""
    return (folder / LOGS).exists() and shutil.which("squeue") is not None


def check(prefix: str, folder: Path, *, silence: Callable[..., Outcome] = problem) -> Outcome:
    """Look for such jobs: while one is left, no run of this folder may begin.

    Args:
        prefix: of the names of Snakemake's jobs.
        folder: the working directory.
        silence: how grave it is that SLURM does not answer whether there are any.
    """
    jobs = find(prefix, folder)
    if jobs is None:
        return silence(CHECK, ANSWER, found="none", do=UNKNOWN)
    if not jobs:
        return ok(CHECK, "none in the queue")
    expected = "no jobs of an earlier run of this folder in the queue, as they write this run's files"
    do = f"Wait until they end, or cancel them: scancel {' '.join(job.id for job in jobs)}"
    return problem(CHECK, expected, found=f"{len(jobs)}", do="\n    ".join([do, *described(jobs)]))


def described(jobs: list[slurm.QueuedJob]) -> list[str]:
    """Return a line a job: id, state, and rule with wildcards."""
    lines = []
    for job in jobs[:DISPLAY_LIMIT]:
        rule, _, wildcards = job.comment.removeprefix("rule_").partition("_wildcards_")
        lines.append(f"{job.id}  {job.state}  {rule}" + (f" ({wildcards})" if wildcards else ""))
    return [*lines, f"and {len(jobs) - DISPLAY_LIMIT} more"] if len(jobs) > DISPLAY_LIMIT else lines
