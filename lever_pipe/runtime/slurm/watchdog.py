"""No wait without end: SLURM jobs that snakemake-executor-plugin-slurm would ask for, or forget, for ever.

The plugin waits for a job until a status query names one of the end states that it knows. Three jobs never get there:
one that was preempted and is not requeued, one whose record the controller has dropped, and, after a round in which
every query failed, each active job, because the plugin takes them off its list. The executor interface hands a round of
jobs to `check_active_jobs`, which reports those that ended and yields the others. Our executor looks at both: what was
neither reported nor yielded is asked for again, and a yielded job whose end SLURM tells in words that the plugin does
not know is reported with a message that names it. Then Snakemake retries or counts it as failed, as the profile says.
And it lets no round be so late that the controller has dropped the record of a job that went well.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lever_pipe.runtime.rerun import decision
from lever_pipe.runtime.slurm import squeue as slurm

log = logging.getLogger(f"snakemake.logging.{__name__}")  # also in the run's own log file
# Snakemake's formatter fills no arguments in: messages are whole strings.

VANISHED_SECONDS = 60.0
"""How long SLURM must answer without knowing a job before its end counts as unseen; submission may lag."""
SILENCE_SECONDS = 60.0
"""How long SLURM may not answer before a line says so, and between such lines."""
ROUNDS_PER_RECORD = 3
"""How many rounds there should be while the controller remembers a job that ended."""
SHORTEST_ROUND = 10
"""Seconds between rounds, at least: the controller has others to answer."""
SUCCESS = "COMPLETED"
FAILURES = {
    "BOOT_FAIL": "its node did not start",
    "CANCELLED": "it was cancelled",
    "DEADLINE": "its deadline passed",
    "FAILED": "its command failed",
    "LAUNCH_FAILED": "its node could not launch it",
    "NODE_FAIL": "its node failed",
    "OUT_OF_MEMORY": "it took more memory than it had asked for",
    "PREEMPTED": "it was preempted and the profile does not requeue",
    "RECONFIG_FAIL": "its node could not be configured",
    "REVOKED": "another cluster took it over",
    "TIMEOUT": "it ran into its time limit",
}
"""End states, and what they mean."""
Job = Any  # snakemake_interface_executor_plugins' SubmittedJobInfo; its `job` is Snakemake's own
Executor = Any  # the plugin's executor


class JobEnd(NamedTuple):
    """The end of a job that the plugin does not see."""

    succeeded: bool
    message: str


class Watchdog:
    """What is known of one executor's jobs beyond what the plugin keeps.

    Args:
        requeues: whether SLURM brings preempted jobs back by itself.
        clock: seconds that never go backwards.
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
        """Yield the jobs that go on, after the plugin has looked at them, and report the others.

        Args:
            executor: the plugin's.
            active: the jobs of this round.
            yielded: those of which the plugin says that they go on.
        """
        selected = {job.external_jobid for job in yielded}
        forgotten = [job for job in active if job.external_jobid not in selected | self.ended]
        if forgotten:
            names = ", ".join(job.external_jobid for job in forgotten)
            log.warning(f"no status of the SLURM jobs {names} in this round; they are asked for again")
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
        """Return how a job ended that the plugin still waits for; None while it may go on.

        An end state counts when two rounds in a row show it, so that the plugin's own report goes before.
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
        """Return the most seconds that may pass between two rounds, by how long SLURM remembers a job that ended."""
        if self._longest_round is None and (settings := slurm.settings()) is not None:
            age = slurm.seconds(settings.get("MinJobAge", "")) or 0  # 0: for ever
            self._longest_round = max(SHORTEST_ROUND, age // ROUNDS_PER_RECORD) if age else float("inf")
        return float("inf") if self._longest_round is None else self._longest_round

    def note_query(self, states: dict[str, str] | None) -> None:
        """Note whether SLURM answered, and say so when it has not for long."""
        now = self._clock()
        if states is not None:
            self._silent_since = None
            return
        self._missing_since.clear()  # only answers count
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
        if seen is not None:  # the record went after one round that showed the end
            return seen
        if decision.is_from_this_plan(job.job):
            return JobEnd(True, f"SLURM no longer knows job {job_id}, but what it had to make is there")
        return JobEnd(False, f"SLURM no longer knows job {job_id}, and nobody saw it end")

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
    slurm.cancel(job.external_jobid)  # no harm to a job that is gone
    logs = [str(job.aux["slurm_logfile"])] if job.aux and job.aux.get("slurm_logfile") else []
    executor.report_job_error(job, msg=f"{end.message}. ", aux_logs=logs)
