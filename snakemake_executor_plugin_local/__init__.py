"""`executor: local`: Snakemake's local executor, with forks for calls of the package and skipping of finished jobs.

Snakemake registers plugins before its own executors and keeps the first of a name. So this one replaces Snakemake's
`local` wherever the package is installed, in every profile and for the local rules of cluster runs.

A job whose artifact exists, or is in the store, at the time of its start is not run (see
`lever_pipe.runtime.reruns.skip`). Commands that are not plain calls of `lever_pipe`, and other workflows, run as
usual.

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
    """Return the copy of this project that a Snakefile belongs to; None for any other workflow."""
    folder = snakefile.resolve().parent
    for root in (folder, folder.parent):
        if (root / "lever_pipe/runtime/snakemake_adapter.py").is_file() and (root / "workflow/Snakefile").is_file():
            return root
    return None


def reading_own_configuration(call: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Wrap Snakemake's entry point after parsing, so that this workflow's own reader handles its configuration."""

    @wraps(call)
    def args_to_api(args: Any, parser: Any) -> bool:
        from snakemake.api import resolve_snakefile

        snakefile = resolve_snakefile(args.snakefile, allow_missing=True)
        root = project_of(Path(snakefile)) if snakefile is not None else None
        if root is None:
            return call(args, parser)
        # First, so that the copy takes precedence over an installed package.
        sys.path.insert(0, str(root))
        from lever_pipe.runtime.snakemake_adapter import own_reader

        with own_reader():
            return call(args, parser)

    return args_to_api


def before_words(register: Callable[..., None]) -> Callable[..., None]:
    """Wrap the registration of plugin options: it runs after all imports and before the parsing of arguments."""

    @wraps(register)
    def register_cli_args(registry: ExecutorPluginRegistry, parser: Any) -> None:
        from snakemake import cli  # incomplete while Snakemake imports plugins

        # Parsers may be built several times in a process; wrap the call only once.
        if not hasattr(cli.args_to_api, "__wrapped__"):
            cli.args_to_api = reading_own_configuration(cli.args_to_api)
        register(registry, parser)

    return register_cli_args


ExecutorPluginRegistry.register_cli_args = before_words(ExecutorPluginRegistry.register_cli_args)


class Executor(local.Executor):  # type: ignore[misc] # of a library without types
    """The local executor with forks and skipping."""

    def run_jobs(self, jobs: list[Any]) -> None:
        """Run the jobs without finished results."""
        from lever_pipe.runtime.reruns import skip

        super().run_jobs(skip.report_completed(self, jobs))

    def run_single_job(self, job: Any) -> Future[None]:
        """Start a job as a fork; other commands, containers, and jobs before the server runs start as in Snakemake."""
        from lever_pipe.runtime import forks

        # A fork runs a plain command only: it creates no environment, cache entry, shadow folder or benchmark.
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
