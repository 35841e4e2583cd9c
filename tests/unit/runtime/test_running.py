"""The line of progress names jobs that run for long, with the share and time of their own logs."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest
from snakemake_interface_logger_plugins.common import LogEvent

from lever_pipe.base.progress import Progress
from lever_pipe.runtime import running
from lever_pipe.runtime.running import RunningJobs

START = 1_000_000.0


def hear(jobs: RunningJobs, event: LogEvent, **more: Any) -> None:
    record = logging.makeLogRecord({"event": event, "created": START, **more})
    jobs.emit(record)


@pytest.fixture
def jobs() -> RunningJobs:
    """Return a run of 404 jobs, 20 of them done."""
    jobs = RunningJobs(404)
    hear(jobs, LogEvent.PROGRESS, done=20, total=404)
    return jobs


def start(jobs: RunningJobs, number: int, text: str, log: Path, content: str = "", *, at: float = START) -> None:
    log.write_text(content)
    os.utime(log, (at, at))
    hear(jobs, LogEvent.JOB_INFO, jobid=number, rule_msg=text, rule_name="one", log=[str(log)])


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "Train (for 1:05)"),
        ("steps: 0 of 40 in 00:00, ? to go", "Train (0%)"),
        (
            "steps: 4 of 40 in 00:30, 04:30 to go\rsteps: 10 of 40 in 01:00, 03:00 to go\nother",
            "Train (25%, 03:00 to go)",
        ),
        ("steps: 9 of 10 in 00:01, 00:01 to go\rsteps: 10 of 10 in 00:02, 00:00 to go\n", "Train (for 1:05)"),
        (
            "train: 30 of 150 in 01:00, 04:00 to go\nevaluate step 31: 6 of 24 in 00:01, 00:03 to go",
            "Train (20%, 04:00 to go)",
        ),
        ("a: 10 of 10 in 00:02, 00:00 to go\nb: 1 of 3 in 1:00:00, 2:00:00 to go", "Train (33%, 2:00:00 to go)"),
    ],
)
def test_a_line_has_share_and_remaining_time(jobs: RunningJobs, tmp_path: Path, content: str, text: str) -> None:
    start(jobs, 1, "Train", tmp_path / "log.txt", content)
    assert jobs.line(START + 65).partition("  ")[2] == f"20 of 404 done, running: {text}"


def test_a_report_comes_after_silence_only(jobs: RunningJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of a clock that the wait itself advances."""
    clock, reported = [0.0], list[float]()

    class Wait:
        def wait(self, seconds: float) -> bool:
            clock[0] += seconds
            if clock[0] == 20:
                hear(jobs, LogEvent.JOB_INFO, jobid=9, rule_msg="Other", rule_name="one", log=[])
            return clock[0] > 90

    monkeypatch.setattr(running.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(running.time, "time", lambda: START + clock[0])
    monkeypatch.setattr(running.log, "info", lambda _: reported.append(clock[0]))
    jobs._last_line, jobs._end = 0.0, Wait()  # type: ignore[assignment]
    start(jobs, 1, "Train", tmp_path / "1")
    jobs._report()
    assert reported == [50.0, 80.0]


def test_it_reads_what_a_job_writes(jobs: RunningJobs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(3, "answer prompts") as progress:
        progress.update()
        progress.refresh()
        start(jobs, 1, "Answer", tmp_path / "log.txt", capsys.readouterr().err)
    assert "Answer (33%" in jobs.line(START + 60)


def test_a_line_names_only_jobs_that_run_for_long(jobs: RunningJobs, tmp_path: Path) -> None:
    """No job of less than half a minute, no ended one, and none without a log of this attempt, as in a queue."""
    start(jobs, 1, "Train", tmp_path / "1")
    assert jobs.line(START + 29) == ""
    assert jobs.line(START + 31) != ""
    start(jobs, 2, "Queued", tmp_path / "2", "steps: 1 of 2 in 0:01, 0:01 to go", at=START - 3600)
    hear(jobs, LogEvent.JOB_INFO, jobid=3, rule_msg="Unlogged", rule_name="one", log=[])
    assert jobs.line(START + 31).endswith("running: Train (for 0:31)")
    hear(jobs, LogEvent.JOB_FINISHED, job_id=1)
    assert jobs.line(START + 31) == ""


def test_many_jobs_are_counted(jobs: RunningJobs, tmp_path: Path) -> None:
    for number in range(5):
        start(jobs, number, f"Train {number}", tmp_path / str(number))
    assert jobs.line(START + 60).endswith("Train 2 (for 1:00) and 2 more")
