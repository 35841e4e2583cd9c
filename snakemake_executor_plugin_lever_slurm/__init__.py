"""`executor: lever-slurm`: snakemake-executor-plugin-slurm, which spares jobs and waits for none without end.

Its settings are those of the plugin, under this name: `lever-slurm-status-command` and so on.
`lever_pipe.runtime.rerun.sparing` and `lever_pipe.runtime.slurm.watchdog` say what is added and why; they are imported
when jobs run, as in `snakemake_executor_plugin_local`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import cached_property
from typing import Any

import snakemake_executor_plugin_slurm as slurm

common_settings, ExecutorSettings = slurm.common_settings, slurm.ExecutorSettings


class Executor(slurm.Executor):  # type: ignore[misc] # of a library without types
    """The SLURM executor with sparing and a watchdog."""

    @cached_property
    def watchdog(self) -> Any:
        """Return what is known of the jobs beyond the plugin."""
        from lever_pipe.runtime.slurm.watchdog import Watchdog

        return Watchdog(requeues=self.workflow.executor_settings.requeue)

    def run_jobs(self, jobs: list[Any]) -> None:
        """Submit the jobs that are not made yet."""
        from lever_pipe.runtime.rerun import sparing

        if left := sparing.report_made(self, jobs):
            super().run_jobs(left)

    async def check_active_jobs(self, active_jobs: list[Any]) -> AsyncIterator[Any]:
        """Yield the jobs that go on; report those that ended, also where the plugin alone would not see it."""
        asked = list(active_jobs)
        if not asked:  # the thread that asks begins before the executor has the name that its jobs are asked for by
            return
        yielded = [job async for job in super().check_active_jobs(active_jobs)]
        async for job in self.watchdog.go_on(self, asked, yielded):
            yield job

    def report_job_success(self, job_info: Any) -> None:
        """Report it, and ask for it no more."""
        self.watchdog.ended.add(job_info.external_jobid)
        super().report_job_success(job_info)

    def report_job_error(self, job_info: Any, msg: str | None = None, **details: Any) -> None:
        """Report it, and ask for it no more."""
        self.watchdog.ended.add(job_info.external_jobid)
        super().report_job_error(job_info, msg, **details)
