"""Repeat submissions that a busy SLURM refuses.

snakemake-executor-plugin-slurm reports each refusal of `sbatch` as a failed attempt of the job. Snakemake then submits
the job again at once, with more memory, so a controller that is busy for a second uses up all attempts. This module
does not report temporary refusals: it repeats the same submission after a growing pause. Other refusals, such as an
invalid partition, are still reported.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import partial
from threading import Event
from typing import Any

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    stop_before_delay,
    stop_when_event_set,
    wait_exponential,
)

from lever_pipe.runtime.slurm import squeue as slurm

log = logging.getLogger(f"snakemake.logging.{__name__}")  # also in the run's own log file

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 60.0
"""Each pause is twice the previous one."""
TEMPORARY = re.compile(
    "|".join(
        [
            # The controller or the network is busy or down.
            "Socket timed out",
            "Unable to contact slurm controller",
            "Unexpected message received",
            "Zero Bytes were transmitted or received",
            "Insane message length",
            "Message (send|receive) failure",
            "Communication (connection|shutdown) failure",
            "Connection (refused|reset by peer|timed out)",
            "Resource temporarily unavailable",
            "Protocol authentication error",  # munged is overloaded or restarts
            "in standby mode",
            # The controller accepts no job at the moment.
            "Unable to create job record, try again",
            "Requested nodes are busy",
            "temporarily (unable to accept job|disabled)",
            "job queue full",
            # The user has too many jobs: AssocMaxSubmitJobLimit, QOSMaxSubmitJobPerUserLimit, AssocGrpSubmitJobsLimit.
            "(Max|Grp)SubmitJob",
        ]
    )
)
"""Temporary errors of `sbatch`: the same request may succeed later."""
CALL = "sbatch call:"
"""Start of the quoted command in the plugin's message; not searched, because names in it could match `TEMPORARY`."""

Job = Any  # Snakemake's own
Executor = Any  # the plugin's executor


class BusyError(Exception):
    """A temporary refusal; its text is the plugin's message."""


def is_temporary(message: str) -> bool:
    """Return whether the plugin's message about a failed submission contains a temporary error."""
    return TEMPORARY.search(message.partition(CALL)[0]) is not None


class Submissions:
    """The submissions of one executor.

    Args:
        executor: the plugin's executor.
        seconds: time limit for the attempts to submit one job.
        report_submission: reports the SLURM job id and log file of a submitted job.
        report_error: reports a job that could not be submitted.
    """

    def __init__(
        self,
        executor: Executor,
        seconds: float,
        *,
        report_submission: Callable[[Job, str, str], None],
        report_error: Callable[[Job, str], None],
    ) -> None:
        self.cancelled = Event()
        self.ids: set[str] = set()
        """SLURM job ids of the submissions of this executor."""
        self._executor = executor
        self._seconds = seconds
        self._report_submission = report_submission
        self._report_error = report_error
        self._refusals: dict[Job, str] = {}

    def submit(self, job: Job, submit_once: Callable[[Job], None]) -> None:
        """Submit a job; repeat this while SLURM refuses it with a temporary error."""
        attempts = Retrying(
            retry=retry_if_exception_type(BusyError),
            wait=wait_exponential(multiplier=FIRST_PAUSE_SECONDS, max=LONGEST_PAUSE_SECONDS),
            stop=stop_when_event_set(self.cancelled) | stop_before_delay(self._seconds),
            sleep=sleep_using_event(self.cancelled),
            before_sleep=partial(_log_pause, job),
            retry_error_callback=partial(self._give_up, job),
        )
        for attempt in attempts:
            with attempt:
                self._attempt(job, submit_once, is_first=attempt.retry_state.attempt_number == 1)

    def postpone(self, job: Job, message: str) -> bool:
        """Record a temporary refusal; return False for any other."""
        if not is_temporary(message):
            return False
        self._refusals[job] = message
        return True

    def _attempt(self, job: Job, submit_once: Callable[[Job], None], *, is_first: bool) -> None:
        if self.cancelled.is_set():  # the run has ended: SLURM would run a useless job
            return
        # The controller may have accepted the job although sbatch failed; a second submission would run it twice.
        if not is_first and self._adopt(job):
            return
        submit_once(job)
        if refusal := self._refusals.pop(job, ""):
            raise BusyError(refusal)

    def _adopt(self, job: Job) -> bool:
        """Report the SLURM job of an earlier attempt, if the controller accepted it although sbatch timed out."""
        from snakemake_executor_plugin_slurm.utils import get_job_wildcards

        kind, wildcards = "group" if job.is_group() else "rule", get_job_wildcards(job)
        comment = f"rule_{job.name}_wildcards_{wildcards}" if wildcards else f"rule_{job.name}"
        comments = slurm.comments_of(self._executor.run_uuid) or {}
        accepted = [job_id for job_id, text in comments.items() if text == comment and job_id not in self.ids]
        if not accepted:
            return False
        log.warning(f"SLURM has accepted job {accepted[0]} ({comment}) although sbatch failed")
        folder = self._executor.slurm_logdir / f"{kind}_{job.name}" / wildcards
        self._report_submission(job, accepted[0], folder / f"{accepted[0]}.log")
        return True

    def _give_up(self, job: Job, state: RetryCallState) -> None:
        if not self.cancelled.is_set() and not self._adopt(job):
            refusal = state.outcome.exception() if state.outcome else None
            tried = f"{state.attempt_number} submissions in {state.seconds_since_start:.0f} s"
            self._report_error(job, f"{refusal}\n    {tried}; --lever-slurm-submission-timeout sets the time limit\n")


def _log_pause(job: Job, state: RetryCallState) -> None:
    refusal = str(state.outcome.exception() if state.outcome else "").partition(CALL)[0].strip()
    log.warning(f"{job}: {refusal} The next submission follows in {state.upcoming_sleep:.0f} s.")
