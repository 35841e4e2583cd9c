"""One call of Snakemake: which configuration it runs, and what happens around its jobs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lever_pipe import snapshot
from lever_pipe.cluster import adoption
from lever_pipe.experiment import Experiment, parse_experiment

SLURM = "slurm"

Workflow = Any  # snakemake.workflow.Workflow


def experiment_of(workflow: Workflow, config: Mapping[str, Any]) -> Experiment:
    """Return the experiment: of the configuration files in the main process, of the snapshot in a job's Snakemake.

    Raises:
        ConfigError: the configuration does not parse.
        SnapshotError: a job without a snapshot, or whose rules were edited after the invocation began.
    """
    if workflow.is_main_process:
        return parse_experiment(config, source=" + ".join(map(str, workflow.configfiles)))
    frozen = snapshot.thaw_config(snakefile=Path(workflow.main_snakefile))
    return parse_experiment(frozen, source=f"the snapshot of {snapshot.VARIABLE}")


def gpu_request(workflow: Workflow) -> str:
    """Return how the profile's default-resources say that GPUs are asked for: `gpu` where they say nothing."""
    defaults = workflow.resource_settings.default_resources
    found = defaults.get("gpu_request") if defaults else None
    return str(getattr(found, "raw", None) or "gpu")


def begin(workflow: Workflow, experiment: Experiment) -> None:
    """Freeze what this invocation will compute, check what it needs, and guard what it waits for.

    Raises:
        LeverPipeError: something that jobs would fail on, or that the run would wait for without end.
    """
    if not workflow.is_main_process:
        return
    jobs, snakefile = list(workflow.dag.needrun_jobs()), Path(workflow.main_snakefile)
    # First, so that what a job of a former run makes while the check waits for it is younger than this plan.
    snapshot.freeze(experiment.model_dump(mode="json"), snapshot.planned_specs(jobs), snakefile=snakefile)
    _check(workflow, experiment, jobs)
    workflow.config_settings.configfiles = ()  # a job's own Snakemake must not read what is edited meanwhile
    adoption.begin()
    if _executor(workflow) == SLURM:
        from lever_pipe.cluster import watchdog

        watchdog.watch(workflow.executor_plugin.executor)


def _check(workflow: Workflow, experiment: Experiment, jobs: list[Any]) -> None:
    from lever_pipe.cluster import doctor
    from lever_pipe.cluster.slurm_checks import SlurmSettings

    executor = _executor(workflow)
    attempts = 1 + workflow.execution_settings.retries
    settings = SlurmSettings.of(workflow.executor_settings, attempts=attempts) if executor == SLURM else None
    doctor.preflight(experiment, executor=executor, jobs=doctor.submitted(jobs), slurm=settings)


def _executor(workflow: Workflow) -> str:
    return str(workflow.executor_plugin.name)
