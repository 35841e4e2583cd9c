"""`executor: local`: Snakemake's local executor, which starts calls of the package as forks and skips jobs.

Snakemake registers plugins before its own executors and keeps the first of a name, so this one takes the place of its
`local` where the package is installed: for local rules beside a cluster too, and in every profile.

A job whose artefact is made, or in the store, when its turn comes is not run (`lever_pipe.runtime.rerun.skipping`). Any
other command than a plain call of `lever_pipe`, and any other workflow, runs as with Snakemake's own.

Snakemake imports each plugin at its start, before it reads a configuration file: no code of this project can run
earlier. If the Snakefile of a call belongs to a copy of this project, the package of that copy reads the configuration
(`lever_pipe.runtime.snakemake_adapter.own_reader`). Nothing of `lever_pipe` is imported before that copy is known.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future
from functools import wraps
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

from snakemake.executors import local
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

common_settings = local.common_settings


def project_of(snakefile: Path) -> Path | None:
    """Return the copy of this project whose workflow a Snakefile is; None for any other workflow."""
    folder = snakefile.resolve().parent
    for root in (folder, folder.parent):
        if (root / "lever_pipe/runtime/snakemake_adapter.py").is_file() and (root / "workflow/Snakefile").is_file():
            return root
    return None


def reading_own_configuration(call: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Return Snakemake's call by parsed words, which reads the configuration of this workflow in its own way."""

    @wraps(call)
    def args_to_api(args: Any, parser: Any) -> bool:
        from snakemake.api import resolve_snakefile

        snakefile = resolve_snakefile(args.snakefile, allow_missing=True)
        root = project_of(Path(snakefile)) if snakefile is not None else None
        if root is None:
            return call(args, parser)
        sys.path.insert(0, str(root))
        from lever_pipe.runtime.snakemake_adapter import own_reader

        with own_reader():
            return call(args, parser)

    return args_to_api


def before_words(register: Callable[..., None]) -> Callable[..., None]:
    """Return the registration of plugins' options, which comes after all imports and before words are parsed."""

    @wraps(register)
    def register_cli_args(registry: ExecutorPluginRegistry, parser: Any) -> None:
        from snakemake import cli  # while plugins are imported it is not complete

        if not hasattr(cli.args_to_api, "__wrapped__"):
            cli.args_to_api = reading_own_configuration(cli.args_to_api)
        register(registry, parser)

    return register_cli_args


ExecutorPluginRegistry.register_cli_args = before_words(ExecutorPluginRegistry.register_cli_args)


class Executor(local.Executor):  # type: ignore[misc] # of a library without types
    """The local executor with forks and skipping."""

    def run_jobs(self, jobs: list[Any]) -> None:
        """Run the jobs that are not made yet."""
        from lever_pipe.runtime.rerun import skipping

        super().run_jobs(skipping.report_completed(self, jobs))

    def run_single_job(self, job: Any) -> Future[None]:
        """Start a job as a fork, or as Snakemake does: another command, no server yet, a container."""
        from lever_pipe.runtime import forks

        is_plain = not (
            self.workflow.deployment_settings.deployment_method
            or self.workflow.workflow_settings.cache
            or job.is_shadow
            or job.benchmark
            or job.resources.get("shell_exec")
        )
        call = forks.call_in(job.shellcmd) if is_plain and job.rule.shellcmd else None
        environment = forks.environment_of(job)
        server = forks.server_for(environment) if call else None
        if call is None or server is None:
            return super().run_single_job(job)
        self.workflow.async_run(job.prepare())
        words, log = call
        status = server.start(words, log=log, environment=environment)

        def until_end() -> None:
            if status.result():
                raise WorkflowError(CalledProcessError(status.result(), job.shellcmd), rule=job.rule)

        return self.pool.submit(until_end)
