"""`executor: local`: Snakemake's local executor, which starts calls of the package as forks and spares jobs.

Snakemake registers plugins before its own executors and keeps the first of a name, so this one takes the place of its
`local` where the package is installed: for local rules beside a cluster too, and in every profile.

A job whose artefact is made, or in the store, when its turn comes is not run (`lever_pipe.runtime.rerun.sparing`). Any
other command than a plain call of `lever_pipe`, and any other workflow, runs as with Snakemake's own.

Nothing of `lever_pipe` is imported before a job runs: Snakemake imports each plugin at its start, and which copy of the
package is meant is known when the rules are read.
"""

from __future__ import annotations

from concurrent.futures import Future
from subprocess import CalledProcessError
from typing import Any

from snakemake.executors import local
from snakemake_interface_common.exceptions import WorkflowError

common_settings = local.common_settings


class Executor(local.Executor):  # type: ignore[misc] # of a library without types
    """The local executor with forks and sparing."""

    def run_jobs(self, jobs: list[Any]) -> None:
        """Run the jobs that are not made yet."""
        from lever_pipe.runtime.rerun import sparing

        super().run_jobs(sparing.report_made(self, jobs))

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
