"""A second job for one artefact leaves before its own Snakemake removes what the first has made.

Snakemake removes a job's outputs before it runs the job's command, where `ownership` keeps a second writer out. So a
job that was left in the queue by a main process that was killed, and starts when the present one has the artefact made,
would take it away from those that read it. Here, in the job's own Snakemake and before it plans anything, such a job
waits for the first one's SLURM job, and leaves if the artefact is whole, as planned, and younger than the plan.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lever_pipe.experiment.run_card import files_of
from lever_pipe.experiment.studies import Experiment
from lever_pipe.runtime import ownership, plan, snapshot
from lever_pipe.runtime.slurm import squeue

log = logging.getLogger(f"snakemake.logging.{__name__}")  # also in SLURM's log of the job
SECONDS_BETWEEN_LOOKS = 10.0

Workflow = Any  # snakemake.workflow.Workflow


class Target(NamedTuple):
    """The job that a Snakemake on a node is there for."""

    rule: str
    wildcards: dict[str, str]
    files: ownership.Files
    """Inputs and outputs by name."""


def leave_if_made(workflow: Workflow, experiment: Experiment) -> None:
    """End this process with status 0 if all it is there for is made already; do nothing in a main process.

    Raises:
        SystemExit: every target is whole.
    """
    if workflow.is_main_process:
        return
    targets = targets_of(workflow, sys.argv[1:])
    for target in targets:
        wait_for_first(target)
    if targets and all(is_made(target, experiment) for target in targets):
        log.warning(f"made already by another job: {', '.join(target.rule for target in targets)}; nothing to do")
        raise SystemExit(0)


def targets_of(workflow: Workflow, words: Sequence[str]) -> list[Target]:
    """Return the jobs that the command line of a job's Snakemake names; rules without a run card are none."""
    from snakemake.iocontainers import Wildcards
    from snakemake.target_jobs import parse_target_jobs_cli_args

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--target-jobs", nargs="+", default=[])
    targets = []
    for name, values in parse_target_jobs_cli_args(parser.parse_known_args(list(words))[0].target_jobs):
        rule, wildcards = workflow.get_rule(name), Wildcards(fromdict=values)
        outputs, inputs = rule.expand_output(values)[0], rule.expand_input(wildcards)[0]
        if "card" in outputs.keys():  # noqa: SIM118 (a named list iterates its values)
            targets.append(Target(name, dict(values), files_of(inputs) | files_of(outputs)))
    return targets


def wait_for_first(target: Target, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Return when no other job owns the artefact any more, and the SLURM job of its last owner has ended."""
    card = target.files["card"]
    assert isinstance(card, Path)  # one path in every rule
    owner = ownership.owner_of(card)
    if owner is None or (owner.job and owner.job == os.environ.get("SLURM_JOB_ID")):
        return
    log.warning(f"{card.parent} is being made by another job: {owner}; waiting")
    with ownership.owned(card):
        pass
    while owner.job and squeue.state_of(owner.job) in ownership.MAY_WRITE:
        sleep(SECONDS_BETWEEN_LOOKS)


def is_made(target: Target, experiment: Experiment) -> bool:
    """Return whether the artefact is whole, as this invocation planned it, and younger than the plan.

    An older one is about to be made again: its input changed, or a user wants it so.
    """
    card = target.files["card"]
    assert isinstance(card, Path)
    try:
        planned = Path(os.environ[snapshot.VARIABLE]).stat().st_mtime
        if card.stat().st_mtime <= planned:
            return False
    except (KeyError, OSError):
        return False
    spec = json.loads(plan.spec_of(experiment, target.rule, target.wildcards))
    return ownership.is_complete(card, target.files, stage=target.rule, config=spec["config"], code=spec["code"])
