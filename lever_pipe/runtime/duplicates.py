"""A second job for one artefact leaves before its own Snakemake removes what the first has made.

Snakemake removes a job's outputs before it runs the job's command, where `ownership` keeps a second writer out. So a
job that was left in the queue by a main process that was killed, and starts when the present one has the artefact made,
would take it away from those that read it. Here, in the job's own Snakemake and before it plans anything, such a job
waits for the first one's SLURM job, and leaves if the artefact is whole, as planned, and younger than the plan.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from lever_pipe.experiment.run_card import Files, files_of
from lever_pipe.experiment.studies import Experiment
from lever_pipe.runtime import ownership, plan, snakemake_adapter
from lever_pipe.runtime.rerun import decision
from lever_pipe.runtime.rerun.artefacts import CARD
from lever_pipe.runtime.slurm import squeue
from lever_pipe.runtime.snakemake_adapter import Workflow

log = logging.getLogger(f"snakemake.logging.{__name__}")  # also in SLURM's log of the job
SECONDS_BETWEEN_LOOKS = 10.0
MAY_WRITE = frozenset(("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"))
"""States of a SLURM job whose processes may still write."""


class Duplicate(NamedTuple):
    """The job that a Snakemake on a node is there for, and that another one may have done."""

    rule: str
    wildcards: dict[str, str]
    card: Path
    files: Files
    """Inputs and outputs by name."""


def leave_if_made(workflow: Workflow, experiment: Experiment) -> None:
    """End this process with status 0 if all it is there for is made already; do nothing in a main process.

    Raises:
        SystemExit: every job is done.
    """
    if workflow.is_main_process:
        return
    jobs = jobs_of(workflow, sys.argv[1:])
    for job in jobs:
        wait_for_first(job.card)
    if jobs and all(is_made(job, experiment) for job in jobs):
        log.warning(f"made already by another job: {', '.join(job.rule for job in jobs)}; nothing to do")
        raise SystemExit(0)


def jobs_of(workflow: Workflow, words: Sequence[str]) -> list[Duplicate]:
    """Return the jobs that the command line of a job's Snakemake names; rules without a run card are none."""
    found = []
    for rule, wildcards, inputs, outputs in snakemake_adapter.targets_of(workflow, words):
        files = files_of(inputs) | files_of(outputs)
        if CARD in files:
            found.append(Duplicate(rule, wildcards, Path(outputs[CARD]), files))
    return found


def wait_for_first(card: Path, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Return when no other job owns the artefact any more, and the SLURM job of its last owner has ended."""
    owner = ownership.owner_of(card)
    if owner is None or (owner.job and owner.job == os.environ.get("SLURM_JOB_ID")):
        return
    log.warning(f"{card.parent} is being made by another job: {owner}; waiting")
    with ownership.owned(card):
        pass
    while owner.job and squeue.state_of(owner.job) in MAY_WRITE:
        sleep(SECONDS_BETWEEN_LOOKS)


def is_made(job: Duplicate, experiment: Experiment) -> bool:
    """Return whether the artefact is whole, as this invocation planned it, and younger than the plan."""
    if not decision.is_of_this_plan(job.card):
        return False
    spec = json.loads(plan.spec_of(experiment, job.rule, job.wildcards))
    return decision.is_made(job.card, job.files, stage=job.rule, config=spec["config"], code=spec["code"])
