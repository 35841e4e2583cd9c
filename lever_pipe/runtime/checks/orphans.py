"""Find queued jobs of an earlier, killed run of this folder, which would still write to its files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from lever_pipe.runtime.checks.findings import Outcome, ok, problem
from lever_pipe.runtime.slurm import squeue as slurm

LOGS = Path(".snakemake/slurm_logs")
"""Folder of the executor plugin's job logs; it exists only if this working directory was used with SLURM."""
PREFIX = "lever_pipe"
"""Prefix of job names, as set in profiles/slurm."""
CHECK = "earlier jobs"
DISPLAY_LIMIT = 20
ANSWER = "an answer of squeue about jobs of an earlier run, which would write this run's files"
UNKNOWN = "Make sure that none is left, or start the run again when `scontrol ping` prints UP."
COMMENTS = ("rule_", "group_")  # prefixes of the plugin's job comments


def find(prefix: str, folder: Path) -> list[slurm.QueuedJob] | None:
    """Return this user's queued jobs in this working directory; None if SLURM does not answer.

    The job in which this process runs is excluded.

    Args:
        prefix: prefix of the names of Snakemake's jobs; if empty, the plugin's comment identifies them.
        folder: the working directory.
    """
    queued, this_job = slurm.queued_jobs(), os.environ.get("SLURM_JOB_ID", "")
    if queued is None:
        return None
    return [
        job
        for job in queued
        if os.path.realpath(job.folder) == os.path.realpath(folder)  # either path may contain links
        and job.id.partition("+")[0] != this_job  # + separates the component of a heterogeneous job
        and (job.name.startswith(f"{prefix}_") if prefix else job.comment.startswith(COMMENTS))
    ]


def may_be_left(folder: Path) -> bool:
    """Return whether SLURM jobs of an earlier run may exist: the folder has their logs, and `squeue` is installed."""
    return (folder / LOGS).exists() and shutil.which("squeue") is not None


def check(prefix: str, folder: Path, *, silence: Callable[..., Outcome] = problem) -> Outcome:
    """Return a problem if the queue contains jobs of an earlier run: until they end, no run of this folder may start.

    Args:
        prefix: prefix of the names of Snakemake's jobs.
        folder: the working directory.
        silence: the kind of outcome if SLURM does not answer, `problem` or `warning`.
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
    """Return one line per job: id, state, and rule with wildcards."""
    lines = []
    for job in jobs[:DISPLAY_LIMIT]:
        rule, _, wildcards = job.comment.removeprefix("rule_").partition("_wildcards_")
        lines.append(f"{job.id}  {job.state}  {rule}" + (f" ({wildcards})" if wildcards else ""))
    return [*lines, f"and {len(jobs) - DISPLAY_LIMIT} more"] if len(jobs) > DISPLAY_LIMIT else lines
