"""`executor: lever-slurm`: snakemake-executor-plugin-slurm that skips finished jobs and tolerates a busy SLURM.

It has the settings of that plugin, named `lever-slurm-status-command` and so on, and `lever-slurm-submission-timeout`.
`lever_pipe.runtime.reruns.skip`, `lever_pipe.runtime.slurm.watchdog` and `lever_pipe.runtime.slurm.submission`
document the additions; they are imported when jobs run, as in `snakemake_executor_plugin_local`.
"""

# No `from __future__ import annotations` here: Snakemake reads the types of the settings at run time.
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import snakemake_executor_plugin_slurm as slurm
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

common_settings = slurm.common_settings


@dataclass
class ExecutorSettings(slurm.ExecutorSettings):  # type: ignore[misc] # of a library without types
    """The settings of the SLURM plugin, and a time limit for repeated submissions."""

    submission_timeout: int = field(
        default=600,
        metadata={
            "help": "Seconds during which a submission is repeated, with growing pauses, while SLURM refuses it "
            "because it is busy or the user has too many jobs. Repetitions do not count as attempts of the job.",
            "env_var": False,
            "required": False,
        },
    )


class Executor(slurm.Executor):  # type: ignore[misc] # of a library without types
    """The SLURM executor with repeated submissions and a watchdog; it skips finished jobs."""

    @cached_property
    def watchdog(self) -> Any:
        """The watchdog for jobs whose end the SLURM plugin alone would miss."""
        from lever_pipe.runtime.slurm.watchdog import Watchdog

        return Watchdog(requeues=self.workflow.executor_settings.requeue)

    def run_jobs(self, jobs: list[Any]) -> None:
        """Submit the jobs without finished results."""
        from lever_pipe.runtime.reruns import skip

        if left := skip.report_completed(self, jobs):
            super().run_jobs(left)

    @cached_property
    def submissions(self) -> Any:
        """The submissions of this executor."""
        from lever_pipe.runtime.slurm.submission import Submissions

        def report_submission(job: Any, job_id: str, log: Any) -> None:
            self._report_job_submission_threadsafe(SubmittedJobInfo(job, job_id, {"slurm_logfile": log}))

        # Outside the lambda, because `super()` there would take the lambda's first argument for the object.
        report_error = super()._report_job_error_threadsafe
        return Submissions(
            self,
            self.workflow.executor_settings.submission_timeout,
            report_submission=report_submission,
            report_error=lambda job, message: report_error(SubmittedJobInfo(job), message),
        )

    def run_job(self, job: Any) -> None:
        """Submit a job, repeatedly while SLURM is busy."""
        self.submissions.submit(job, super().run_job)

    def _report_job_submission_threadsafe(self, job_info: Any) -> None:
        self.submissions.ids.add(job_info.external_jobid)
        super()._report_job_submission_threadsafe(job_info)

    def _report_job_error_threadsafe(self, job_info: Any, msg: str) -> None:
        # The plugin reports a refused submission as an error of the job; temporary refusals are retried instead.
        if not self.submissions.postpone(job_info.job, msg):
            super()._report_job_error_threadsafe(job_info, msg)

    def cancel(self) -> None:
        """Cancel the jobs, and submit no further ones."""
        self.submissions.cancelled.set()
        super().cancel()

    async def check_active_jobs(self, active_jobs: list[Any]) -> AsyncIterator[Any]:
        """Yield the active jobs; report ended ones, including those that the SLURM plugin alone would miss."""
        jobs = list(active_jobs)
        if not jobs:  # the first check may run before the executor has the name that it looks for jobs with
            return
        yielded = [job async for job in super().check_active_jobs(active_jobs)]
        async for job in self.watchdog.go_on(self, jobs, yielded):
            yield job

    def report_job_success(self, job_info: Any) -> None:
        """Report the success, and stop checking the job."""
        self.watchdog.ended.add(job_info.external_jobid)
        super().report_job_success(job_info)

    def report_job_error(self, job_info: Any, msg: str | None = None, **details: Any) -> None:
        """Report the error, and stop checking the job."""
        self.watchdog.ended.add(job_info.external_jobid)
        super().report_job_error(job_info, msg, **details)
