"""`lever-pipe doctor`: check whether a run can work here, before any job is submitted.

Its arguments are those of the planned `snakemake` call, as `--workflow-profile profiles/slurm --configfile
config/okvqa_qwen2_5_vl_3b.yaml`. On a cluster, or if this folder was used on one, it also looks for jobs of a killed
run in SLURM's queue. Each run makes the same checks at its start.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import click

from lever_pipe.base.errors import LeverPipeError
from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.runtime import snakemake_adapter
from lever_pipe.runtime.checks import cluster, local_checks, orphans
from lever_pipe.runtime.checks.findings import Level, Outcome, ok, refused, require_no_problem, warning
from lever_pipe.runtime.command_words import SnakemakeCommand
from lever_pipe.runtime.snakemake_adapter import LOCAL, SLURM, UnplannableError, planned_jobs

LOG = logging.getLogger(f"snakemake.logging.{__name__}")  # also in the run's own log file

Job = Mapping[str, Any]


class SnakemakeCall(NamedTuple):
    """A parsed Snakemake call; `prefix` is the prefix of job names in SLURM, None with another executor."""

    config: dict[str, Any]
    source: str
    executor: str
    prefix: str | None


def preflight(
    experiment: Experiment,
    *,
    executor: str,
    jobs: Sequence[Job],
    prefix: str | None = None,
    folder: Path = Path(),
) -> list[Outcome]:
    """Check all requirements of the planned jobs, log warnings, and return the outcomes.

    Args:
        experiment: the experiment to run.
        executor: Snakemake's executor; if it is the local one, this machine's GPUs are checked, too.
        jobs: resources of each job that is to be submitted or run here, including `rule` and `threads`.
        prefix: prefix of the names of SLURM jobs; None with another executor.
        folder: the working directory.

    Raises:
        PreflightError: lists all problems on which the run would fail or hang.
    """
    rules = {str(job["rule"]) for job in jobs}
    outcomes = list(local_checks.check(experiment, rules=rules, folder=folder))
    if jobs:
        outcomes += check_jobs(experiment, jobs, executor, prefix, folder)
    for outcome in outcomes:
        if outcome.level is Level.WARNING:
            LOG.warning(outcome.text)
    require_no_problem(outcomes)
    return outcomes


def check_jobs(
    experiment: Experiment,
    jobs: Sequence[Job],
    executor: str,
    prefix: str | None,
    folder: Path,
) -> Iterator[Outcome]:
    """Check the machine or cluster for the jobs, then look for an earlier run's jobs in SLURM's queue.

    A run that does not use SLURM makes the second check only if an earlier run of this folder did. Then SLURM's
    silence is only a warning.
    """
    computing = local_checks.of_known_size(experiment, jobs, folder) if executor == LOCAL else []
    yield from local_checks.gpus(computing)
    if prefix is not None:
        yield from cluster.memory_requests(jobs)
        yield from cluster.missing_commands() or [orphans.check(prefix, folder)]
    elif orphans.may_be_left(folder):
        yield orphans.check(orphans.PREFIX, folder, silence=warning)


@click.command(cls=SnakemakeCommand, help=__doc__, epilog="All other arguments are Snakemake's.")
@click.option("--data", is_flag=True, help="also read every question, annotation and image")
@click.option("--answer", type=int, default=0, metavar="N", help="also ask the LVLM N questions")
def command(data: bool, answer: int, words: tuple[str, ...]) -> int:
    """Print one line per check; return 0, or 2 if there is a problem."""
    levels = []
    for outcome in examine(words, in_data=data, n_answers=answer):
        levels.append(outcome.level)
        sys.stdout.write(f"{outcome.level:<9}{outcome.text}\n")
        sys.stdout.flush()
    return 2 if Level.PROBLEM in levels else 0


def examine(words: Sequence[str], *, in_data: bool = False, n_answers: int = 0) -> Iterator[Outcome]:
    """Yield the outcomes of all checks for a Snakemake call.

    Args:
        words: the arguments of the call.
        in_data: whether to read all raw data.
        n_answers: number of questions for the LVLM.
    """
    call, folder = read_call(words), Path()
    try:
        experiment = parse_experiment(call.config, source=call.source)
    except LeverPipeError as refusal:
        yield refused("configuration", refusal)
        return
    yield ok("configuration", call.source)
    yield ok("executor", call.executor)
    outcomes = list(local_checks.check(experiment, rules=None, folder=folder))
    yield from outcomes
    if in_data:
        yield from local_checks.data(experiment, folder)
    if n_answers:
        from lever_pipe.runtime.checks import answers  # loads torch

        yield from answers.check(experiment, n_answers, folder)
    jobs: list[Job] = []
    try:
        planned = planned_jobs(list(words))
        jobs = [{**job.resources, "rule": job.rule, "threads": job.threads} for job in planned]
    except UnplannableError as refusal:
        if all(outcome.level is not Level.PROBLEM for outcome in outcomes):  # otherwise the cause is reported already
            yield refused("plan", refusal)
    yield from check_jobs(experiment, jobs, call.executor, call.prefix, folder)


def read_call(words: Sequence[str]) -> SnakemakeCall:
    """Parse arguments of Snakemake, including profiles.

    Raises:
        ConfigError: Snakemake rejects the arguments.
    """
    from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

    options = snakemake_adapter.arguments_of(words)
    found = snakemake_adapter.configured(options)
    executor, prefix = options["executor"] or LOCAL, None
    if executor in SLURM:
        settings = ExecutorPluginRegistry().get_plugin(executor).get_settings(SimpleNamespace(**options))
        prefix = settings.jobname_prefix or ""
    return SnakemakeCall(found.values, found.source, executor, prefix)


def submitted(jobs: Any) -> list[Job]:
    """Return the resources of the Snakemake jobs that its executor gets.

    On a cluster, these exclude jobs of local rules, which run on the submitting machine. Without a cluster, Snakemake
    marks all jobs as local, and this machine runs them all.
    """
    return [
        {**dict(job.resources.items()), "rule": job.rule.name, "threads": job.threads}
        for job in jobs
        if not job.is_local or job.dag.workflow.local_exec
    ]
