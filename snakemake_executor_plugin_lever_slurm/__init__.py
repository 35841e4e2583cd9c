"""`executor: lever-slurm`: snakemake-executor-plugin-slurm, which skips finished jobs and survives a busy SLURM.

It has the settings of the plugin, named `lever-slurm-status-command` and so on, and `lever-slurm-submission-timeout`.
`lever_pipe.runtime.rerun.skipping`, `lever_pipe.runtime.slurm.watchdog` and `lever_pipe.runtime.slurm.submission`
document the additions; they are imported when jobs run, as in `snakemake_executor_plugin_local`.
"""

# Without `from __future__ import annotations`: Snakemake reads the types of the settings.
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import snakemake_executor_plugin_slurm as slurm
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

common_settings = slurm.common_settings


@dataclass
class ExecutorSettings(slurm.ExecutorSettings):  # type: ignore[misc] # of a library without types
    """The settings of the plugin, and the time limit of repeated submissions."""

    submission_timeout: int = field(
        default=600,
        metadata={
            "help": "Seconds during which a submission is repeated, after growing pauses, that SLURM refuses because "
            "it is busy or the user has too many jobs. No attempt of the job is used up meanwhile.",
            "env_var": False,
            "required": False,
        },
    )


class Executor(slurm.Executor):  # type: ignore[misc] # of a library without types
    """The SLURM executor with repeated submissions and a watchdog; it skips finished jobs."""

    @cached_property
    def watchdog(self) -> Any:
        """Return what is known of the jobs beyond the plugin."""
        from lever_pipe.runtime.slurm.watchdog import Watchdog

        return Watchdog(requeues=self.workflow.executor_settings.requeue)

    def run_jobs(self, jobs: list[Any]) -> None:
        """Submit the jobs that are not made yet."""
        from lever_pipe.runtime.rerun import skipping

        if left := skipping.report_completed(self, jobs):
            super().run_jobs(left)

    @cached_property
    def submissions(self) -> Any:
        """Return the submissions of this executor."""
        from lever_pipe.runtime.slurm.submission import Submissions

        def report_submission(job: Any, job_id: str, log: Any) -> None:
            self._report_job_submission_threadsafe(SubmittedJobInfo(job, job_id, {"slurm_logfile": log}))

        report_error = super()._report_job_error_threadsafe
        return Submissions(
            self,
            self.workflow.executor_settings.submission_timeout,
            report_submission=report_submission,
            report_error=lambda job, message: report_error(SubmittedJobInfo(job), message),
        )

    def run_job(self, job: Any) -> None:
        """Submit a job, again while SLURM is busy."""
        self.submissions.submit(job, super().run_job)

    def _report_job_submission_threadsafe(self, job_info: Any) -> None:
        self.submissions.ids.add(job_info.external_jobid)
        super()._report_job_submission_threadsafe(job_info)

    def _report_job_error_threadsafe(self, job_info: Any, msg: str) -> None:
        if not self.submissions.postpone(job_info.job, msg):
            super()._report_job_error_threadsafe(job_info, msg)

    def cancel(self) -> None:
        """Cancel the jobs, and submit no more."""
        self.submissions.cancelled.set()
        super().cancel()

    async def check_active_jobs(self, active_jobs: list[Any]) -> AsyncIterator[Any]:
        """Yield the jobs that go on; report those that ended, also where the plugin alone would not see it."""
        requested = list(active_jobs)
        if not requested:  # the thread that asks begins before the executor has the name that its jobs are asked for by
            return
        yielded = [job async for job in super().check_active_jobs(active_jobs)]
        async for job in self.watchdog.go_on(self, requested, yielded):
            yield job

    def report_job_success(self, job_info: Any) -> None:
        """Report it, and ask for it no more."""
        self.watchdog.ended.add(job_info.external_jobid)
        super().report_job_success(job_info)

    def report_job_error(self, job_info: Any, msg: str | None = None, **details: Any) -> None:
        """Report it, and ask for it no more."""
        self.watchdog.ended.add(job_info.external_jobid)
        super().report_job_error(job_info, msg, **details)
