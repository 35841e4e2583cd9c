"""Print the progress of running jobs on the terminal while no job starts.

A long job writes its progress to its log (`base/progress.py`). `RunningJobs` reads the last part of these logs, in a
thread of the main process. On a cluster, logs are on a shared file system, so this works there, too.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from typing import NamedTuple

from snakemake_interface_logger_plugins.common import LogEvent

from lever_pipe.runtime.failures import is_of_attempt, tail_of

SECONDS = 30.0
"""Seconds without output before a line of progress, and minimum age of the jobs in it."""
DISPLAY_LIMIT = 3
PROGRESS = re.compile(r"([^\r\n]*): (\d+) of (\d+) in [\d:]+, ([\d:]+|\?) to go")

log = logging.getLogger(f"snakemake.logging.{__name__}")  # also in the run's own log file


class RunningJob(NamedTuple):
    """A job after its submission; `started` is in seconds since the epoch."""

    text: str
    logs: tuple[str, ...]
    started: float

    def progress(self, now: float) -> str:
        """Return the job with its percentage and remaining time, or its age; empty without a log, as in a queue."""
        age = int(now - self.started)
        if age < SECONDS or not any(is_of_attempt(path, self.started) for path in self.logs):
            return ""
        lines = [line for path in self.logs for line in PROGRESS.findall(tail_of(path, self.started))]
        latest = {label: counts for label, *counts in lines}
        # Nested work starts later, so the first unfinished label is that of the whole job.
        for done, total, remaining in latest.values():
            if int(done) < int(total):
                rest = "" if remaining == "?" else f", {remaining} to go"
                return f"{self.text} ({int(done) / int(total):.0%}{rest})"
        return f"{self.text} (for {age // 60}:{age % 60:02})"


class RunningJobs(logging.Handler):
    """A listener to Snakemake's logger that reports running jobs after half a minute of silence.

    Args:
        n_jobs: number of planned jobs.
    """

    def __init__(self, n_jobs: int) -> None:
        super().__init__(logging.INFO)
        self._jobs: dict[int, RunningJob] = {}
        self._done, self._n_jobs = 0, n_jobs
        self._last_line = time.monotonic()
        self._end = threading.Event()

    def start(self) -> None:
        """Listen to Snakemake and report until `stop`."""
        logging.getLogger("snakemake.logging").addHandler(self)
        threading.Thread(target=self._report, name="running jobs", daemon=True).start()

    def stop(self) -> None:
        """End the reports."""
        self._end.set()
        logging.getLogger("snakemake.logging").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Note the start or end of a job."""
        fields, self._last_line = vars(record), time.monotonic()
        match fields.get("event"):
            case LogEvent.JOB_INFO:
                text = str(fields.get("rule_msg") or fields["rule_name"])
                logs = tuple(map(str, fields.get("log") or ()))
                self._jobs[fields["jobid"]] = RunningJob(text, logs, record.created)
            case LogEvent.JOB_FINISHED:
                self._jobs.pop(fields["job_id"], None)  # Snakemake spells this field differently here
            case LogEvent.JOB_ERROR:
                self._jobs.pop(fields["jobid"], None)
            case LogEvent.PROGRESS:
                self._done, self._n_jobs = fields["done"], fields["total"]

    def line(self, now: float) -> str:
        """Return the line of progress; empty if no job is old enough."""
        # A copy, because the scheduler's threads add and remove jobs.
        jobs = sorted(self._jobs.copy().values(), key=lambda job: job.started)
        texts = [text for job in jobs if (text := job.progress(now))]
        if not texts:
            return ""
        more = f" and {len(texts) - DISPLAY_LIMIT} more" if len(texts) > DISPLAY_LIMIT else ""
        clock = time.strftime("%H:%M:%S", time.localtime(now))
        return f"{clock}  {self._done} of {self._n_jobs} done, running: {'; '.join(texts[:DISPLAY_LIMIT])}{more}"

    def _report(self) -> None:
        while not self._end.wait(1.0):
            if time.monotonic() - self._last_line >= SECONDS:
                self._last_line = time.monotonic()
                if line := self.line(time.time()):
                    log.info(line)
