"""Detect SLURM jobs that snakemake-executor-plugin-slurm has lost or would wait for without end.

The plugin waits for a job until a status query returns one of its end states. This never happens for three kinds of
jobs: a preempted job that is not requeued, a job whose record the controller has dropped, and, after a round in which
every query failed, each active job, because the plugin removes them from its list. The executor interface passes a
round of jobs to `check_active_jobs`, which reports ended jobs and yields the others. Our executor checks both results.
A job that was neither reported nor yielded is queried again. A yielded job in an end state that the plugin does not
support is reported with a message that names the state. Then Snakemake retries the job or counts it as failed, as
configured in the profile. The watchdog also limits the time between rounds, so that the controller does not drop the
record of a successful job between two of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lever_pipe.runtime.reruns import check
from lever_pipe.runtime.slurm import squeue as slurm

log = logging.getLogger(f"snakemake.logging.{__name__}")  # also in the run's own log file
# Snakemake's formatter does not insert %-arguments, so messages are complete strings.

VANISHED_SECONDS = 60.0
"""How long SLURM must answer without a job's record before the job counts as ended: a new job may appear late."""
SILENCE_SECONDS = 60.0
"""Seconds without an answer of SLURM before a warning, and between such warnings."""
ROUNDS_PER_RECORD = 3
"""Number of rounds while the controller keeps the record of an ended job."""
SHORTEST_ROUND = 10
"""Minimum seconds between rounds, to limit the load on the controller."""
SUCCESS = "COMPLETED"
FAILURES = {
    "BOOT_FAIL": "its node did not start",
    "CANCELLED": "it was cancelled",
    "DEADLINE": "its deadline passed",
    "FAILED": "its command failed",
    "LAUNCH_FAILED": "its node could not launch it",
    "NODE_FAIL": "its node failed",
    "OUT_OF_MEMORY": "it used more memory than requested",
    "PREEMPTED": "it was preempted and the profile does not requeue",
    "RECONFIG_FAIL": "its node could not be configured",
    "REVOKED": "another cluster took it over",
    "TIMEOUT": "it reached its time limit",
}
"""End states and their meaning."""
Job = Any  # snakemake_interface_executor_plugins' SubmittedJobInfo; its `job` is Snakemake's own
Executor = Any  # the plugin's executor


class JobEnd(NamedTuple):
    """The end of a job that the plugin does not detect."""

    succeeded: bool
    message: str


class Watchdog:
    """State of one executor's jobs, in addition to the plugin's own list.

    Args:
        requeues: whether SLURM requeues preempted jobs.
        clock: a monotonic clock in seconds.
    """

    def __init__(self, *, requeues: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.requeues = requeues
        self.ended: set[str] = set()
        self._clock = clock
        self._missing_since: dict[str, float] = {}
        self._last_state: dict[str, str] = {}
        self._silent_since: float | None = None
        self._logged = 0.0
        self._longest_round: float | None = None

    async def go_on(self, executor: Executor, active: Sequence[Job], yielded: Sequence[Job]) -> AsyncIterator[Job]:
        """Yield the jobs that are still active after the plugin's round, and report the others.

        Args:
            executor: the plugin's executor.
            active: the jobs of this round.
            yielded: those that the plugin considers active.
        """
        yielded_ids = {job.external_jobid for job in yielded}
        forgotten = [job for job in active if job.external_jobid not in yielded_ids | self.ended]
        if forgotten:
            names = ", ".join(job.external_jobid for job in forgotten)
            log.warning(f"no status of the SLURM jobs {names} in this round; they are queried again")
        # Queries take up to 20 s each, and must not block Snakemake's event loop.
        checked = await asyncio.to_thread(self._checked, executor.run_uuid, [*yielded, *forgotten])
        longest = await asyncio.to_thread(self.longest_round)
        executor.next_seconds_between_status_checks = min(executor.next_seconds_between_status_checks, longest)
        for job, end in checked:
            if end is None:
                yield job
            else:
                _report(executor, job, end)

    def _checked(self, name: str, jobs: Sequence[Job]) -> list[tuple[Job, JobEnd | None]]:
        if not jobs:
            return []
        states = slurm.states_of(name)
        self.note_query(states)
        return [(job, None if states is None else self.check(job, states)) for job in jobs]

    def check(self, job: Job, states: Mapping[str, str]) -> JobEnd | None:
        """Return the end of a job for which the plugin still waits; None if it may be active.

        An end state counts only after two rounds in a row, so that the plugin can report it first.
        """
        job_id: str = job.external_jobid
        state = states.get(job_id, "").split(" ")[0]
        if not state:
            return self._check_missing(job)
        self._missing_since.pop(job_id, None)
        if self.requeues and state in ("PREEMPTED", "NODE_FAIL"):
            self._last_state.pop(job_id, None)
            return None
        before, self._last_state[job_id] = self._last_state.get(job_id), state
        return self._verdict(job_id, state) if before == state else None

    def longest_round(self) -> float:
        """Return the maximum seconds between two rounds, derived from SLURM's MinJobAge."""
        if self._longest_round is None and (settings := slurm.settings()) is not None:
            age = slurm.seconds(settings.get("MinJobAge", "")) or 0  # 0: records are never dropped
            self._longest_round = max(SHORTEST_ROUND, age // ROUNDS_PER_RECORD) if age else float("inf")
        return float("inf") if self._longest_round is None else self._longest_round

    def note_query(self, states: dict[str, str] | None) -> None:
        """Record whether SLURM answered, and warn after a long time without an answer."""
        now = self._clock()
        if states is not None:
            self._silent_since = None
            return
        self._missing_since.clear()  # a job counts as missing only while SLURM answers
        self._silent_since = now if self._silent_since is None else self._silent_since
        if now - max(self._silent_since, self._logged) >= SILENCE_SECONDS:
            self._logged = now
            log.warning(f"SLURM has not answered for {now - self._silent_since:.0f} s; waiting for it")

    def _check_missing(self, job: Job) -> JobEnd | None:
        job_id: str = job.external_jobid
        since = self._missing_since.setdefault(job_id, self._clock())
        if self._clock() - since < VANISHED_SECONDS:
            return None
        state = slurm.state_of(job_id)
        if state is None:
            return None
        return self._verdict(job_id, state) if state else self._check_forgotten(job)

    def _check_forgotten(self, job: Job) -> JobEnd:
        job_id: str = job.external_jobid
        seen = self._verdict(job_id, self._last_state.get(job_id, ""))
        if seen is not None:  # the controller dropped the record after one round that showed the end
            return seen
        if check.is_from_this_plan(job.job):
            return JobEnd(True, f"SLURM no longer knows job {job_id}, but its outputs are complete")
        return JobEnd(False, f"SLURM no longer knows job {job_id}, and its end was not observed")

    def _verdict(self, job_id: str, state: str) -> JobEnd | None:
        if state == SUCCESS:
            return JobEnd(True, f"SLURM job {job_id} completed")
        if state in FAILURES:
            return JobEnd(False, f"SLURM job {job_id} ended as {state}: {FAILURES[state]}")
        return None


def _report(executor: Executor, job: Job, end: JobEnd) -> None:
    log.warning(f"{end.message}, which the executor did not notice")
    if end.succeeded:
        executor.report_job_success(job)
        return
    slurm.cancel(job.external_jobid)  # has no effect if the job has ended
    logs = [str(job.aux["slurm_logfile"])] if job.aux and job.aux.get("slurm_logfile") else []
    executor.report_job_error(job, msg=f"{end.message}. ", aux_logs=logs)
