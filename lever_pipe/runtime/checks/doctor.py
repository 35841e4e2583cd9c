"""`python -m lever_pipe doctor`: whether a run can work here, before a single job is submitted.

It takes the words of the `snakemake` call that it looks ahead to, as `--workflow-profile profiles/slurm --configfile
config/okvqa_qwen2_5_vl_3b.yaml`. On a cluster it also looks at SLURM and at what the planned jobs ask for; where this
folder was ever run on one, at jobs that a killed run has left in the queue. A run looks itself when it starts.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lever_pipe.base.errors import ConfigError, LeverPipeError
from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.runtime import snakemake_adapter
from lever_pipe.runtime.checks import compute, local_checks, orphans, slurm_checks
from lever_pipe.runtime.checks.findings import Level, Outcome, ok, require_no_fault, warning
from lever_pipe.runtime.checks.slurm_checks import SlurmSettings
from lever_pipe.runtime.snakemake_adapter import UnplannableError, planned_jobs

LOG = logging.getLogger(f"snakemake.logging.{__name__}")  # also in the run's own log file
CONFIG = Path("config.yaml")
SLURM, LOCAL = "slurm", "local"

Job = Mapping[str, Any]


class SnakemakeCall(NamedTuple):
    """What a call of Snakemake would do.

    Attributes:
        config: the configuration, files and words merged.
        slurm: settings of the executor plugin; None with another executor.
    """

    config: dict[str, Any]
    source: str
    executor: str
    slurm: SlurmSettings | None


def preflight(
    experiment: Experiment,
    *,
    executor: str,
    jobs: Sequence[Job],
    slurm: SlurmSettings | None = None,
    chosen: str | None = None,
    folder: Path = Path(),
) -> list[Outcome]:
    """Look at everything that the planned jobs need, and return what was found.

    Args:
        experiment: what runs.
        executor: Snakemake's executor; with `slurm`, SLURM is looked at too, and with `local`, this machine's GPUs.
        jobs: resources of each job that is to be submitted or run here, `rule` and `threads` among them.
        slurm: settings of the executor plugin.
        chosen: what to do about jobs of an earlier run; by default what the environment says.
        folder: the working directory.

    Raises:
        PreflightError: something that the run would fail on, or never end with; all of it at once.
        ConfigError: an unknown word for `chosen`.
    """
    on_orphans = orphans.choice(chosen)
    rules = {str(job["rule"]) for job in jobs}
    findings = list(local_checks.check(experiment, rules=rules, folder=folder))
    if jobs and executor == SLURM:
        findings += look_at_slurm(slurm or SlurmSettings(), jobs, on_orphans, folder, so_far=findings)
    elif jobs:
        computing = local_checks.of_known_size(experiment, jobs, folder) if executor == LOCAL else []
        findings += local_checks.gpus(computing)
        findings += look_for_left_jobs(on_orphans, folder, so_far=findings)
    for finding in findings:
        if finding.level is Level.WARNING:
            LOG.warning(finding.text)
    require_no_fault(findings)
    return findings


def look_at_slurm(
    settings: SlurmSettings, jobs: Sequence[Job], on_orphans: orphans.OnOrphans, folder: Path, *, so_far: list[Outcome]
) -> list[Outcome]:
    """Return what is found about SLURM; waits for earlier jobs, or cancels them, only for a run that can go on."""
    found = list(slurm_checks.check(settings, jobs))
    if any(finding.check == slurm_checks.CLUSTER and finding.level is Level.FAULT for finding in found):
        return found
    if on_orphans is orphans.OnOrphans.REPORT or _can_go_on([*so_far, *found]):
        found.append(orphans.settle(on_orphans, settings.jobname_prefix, folder))
    return found


def look_for_left_jobs(on_orphans: orphans.OnOrphans, folder: Path, *, so_far: list[Outcome]) -> list[Outcome]:
    """Return what a run that does not submit to SLURM finds of jobs that one before it has submitted.

    Nothing is asked where no run of this folder did. As this run needs no SLURM, its silence is no fault.
    """
    if orphans.may_be_left(folder) and (on_orphans is orphans.OnOrphans.REPORT or _can_go_on(so_far)):
        return [orphans.settle(on_orphans, orphans.PREFIX, folder, silence=warning)]
    return []


def main(words: Sequence[str]) -> int:
    """Print a line a check; return 0, or 2 where there is a fault."""
    options, call_words = _parser().parse_known_args(words[1:])
    if options.probe:
        sys.stdout.write(f"{compute.probe(options.probe)}\n")
        return 0
    faulty = False
    for finding in examine(call_words, orphans.choice(options.orphans), on_nodes=options.compute):
        sys.stdout.write(f"{finding.line}\n")
        sys.stdout.flush()
        faulty = faulty or finding.level is Level.FAULT
    return 2 if faulty else 0


def examine(
    words: Sequence[str], on_orphans: orphans.OnOrphans, *, on_nodes: bool, folder: Path = Path()
) -> Iterator[Outcome]:
    """Yield what is found for a call of Snakemake with these words.

    Args:
        words: of the call.
        on_orphans: what to do about jobs of an earlier run.
        on_nodes: whether to submit a tiny job to each partition that the planned jobs name.
        folder: the working directory.
    """
    call = read_call(words)
    try:
        experiment = parse_experiment(call.config, source=call.source)
    except LeverPipeError as refusal:
        yield _refused("configuration", refusal)
        return
    yield ok("configuration", call.source)
    yield ok("executor", call.executor)
    found = list(local_checks.check(experiment, rules=None, folder=folder))
    yield from found
    jobs: list[Job] = []
    try:
        jobs = planned(words)
    except UnplannableError as refusal:
        found.append(_refused("plan", refusal))
        yield found[-1]
    if call.slurm is None:
        computing = local_checks.of_known_size(experiment, jobs, folder) if call.executor == LOCAL else []
        there = list(local_checks.gpus(computing))
        yield from [*there, *look_for_left_jobs(on_orphans, folder, so_far=[*found, *there])]
        return
    yield from look_at_slurm(call.slurm, jobs, on_orphans, folder, so_far=found)
    if on_nodes:
        yield from compute.check(jobs, call.slurm.jobname_prefix)


def read_call(words: Sequence[str]) -> SnakemakeCall:
    """Return what Snakemake would understand of these words, profiles included.

    Raises:
        ConfigError: it would not.
    """
    from snakemake.exceptions import CliException, WorkflowError

    try:
        return _understood(words)
    except (CliException, WorkflowError, ValueError, OSError) as refusal:
        expected = "doctor: expected words that Snakemake understands"
        raise ConfigError(expected, found=str(refusal).rstrip("."), do="Write them as for snakemake itself.") from None


def _understood(words: Sequence[str]) -> SnakemakeCall:
    from snakemake.cli import parse_args
    from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

    _, args = parse_args(list(words))
    files = [path for path in (CONFIG, *(args.configfile or ())) if path != CONFIG or path.exists()]
    executor = args.executor or LOCAL
    settings = ExecutorPluginRegistry().get_plugin(executor).get_settings(args) if executor == SLURM else None
    return SnakemakeCall(
        config=snakemake_adapter.configuration_of(files, args.config),
        source=" + ".join(map(str, files)),
        executor=executor,
        slurm=SlurmSettings.of(settings, attempts=1 + args.retries) if settings else None,
    )


def planned(words: Sequence[str]) -> list[Job]:
    """Return the resources of the jobs that a call would submit or run, by a dry run in this process.

    Raises:
        UnplannableError: Snakemake cannot plan them.
    """
    return [{**job.resources, "rule": job.rule, "threads": job.threads} for job in planned_jobs(list(words))]


def submitted(jobs: Any) -> list[Job]:
    """Return the resources of Snakemake's own job objects: of those that its executor gets.

    On a cluster some run beside Snakemake. Without one it calls all jobs local, and they are what this machine runs.
    """
    return [
        {**dict(job.resources.items()), "rule": job.rule.name, "threads": job.threads}
        for job in jobs
        if not job.is_local or job.dag.workflow.local_exec
    ]


def _can_go_on(findings: list[Outcome]) -> bool:
    return all(finding.level is not Level.FAULT for finding in findings)


def _refused(check: str, refusal: LeverPipeError) -> Outcome:
    return Outcome(Level.FAULT, check, refusal.found, refusal.expected.rpartition("expected ")[2], refusal.do)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lever_pipe doctor",
        description=__doc__,
        epilog="All other words are Snakemake's.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--orphans",
        choices=list(map(str, orphans.OnOrphans)),
        help=f"what to do about jobs of an earlier run; {orphans.VARIABLE} says it for a run",
    )
    parser.add_argument("--compute", action="store_true", help="also run a tiny job in each partition")
    parser.add_argument("--probe", type=Path, help=argparse.SUPPRESS)
    return parser
