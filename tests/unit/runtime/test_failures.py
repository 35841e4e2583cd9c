"""What failed and why, from records as Snakemake 9.27 and its SLURM plugin 2.8 write them."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from lever_pipe.runtime.failures import STATES, FailedJob, Failures

ADVICE = (
    "Detailed failure reason unavailable (status command is not 'sacct').For further error details see the "
    "cluster/cloud log and the log files of the involved rule(s)."
)


class Run:
    """A run from the log handler's view, with a folder of logs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.failures = Failures()

    def emit(self, event: str | None, message: str | None = None, level: int = logging.INFO, **fields: Any) -> None:
        record = logging.LogRecord("snakemake.logging", level, __file__, 1, message, (), None)
        vars(record).update({"event": event, **fields} if event else fields)
        self.failures.handle(record)

    def starts(self, job: int, rule: str = "train", *, log: str = "", **fields: Any) -> None:
        values = {"wildcards": {"seed": "0"}} | fields
        self.emit(
            "job_info", f" Rule: {rule}, Jobid: {job}", jobid=job, rule_name=rule, log=[log] if log else [], **values
        )

    def finishes(self, job: int) -> None:
        self.emit("job_finished", f"Finished jobid: {job}", job_id=job)

    def fails(self, job: int, rule: str = "train", *, status: int = 2, log: str = "") -> None:
        """Let a job of the local executor fail."""
        problem = f"RuleException:\nCalledProcessError:\nCommand 'x' returned non-zero exit status {status}."
        self.emit("error", problem, logging.ERROR, exception="RuleException")
        self.errs(job, rule, log=[log] if log else [])

    def errs(self, job: int, rule: str = "train", **fields: Any) -> None:
        values: dict[str, Any] = {"rule_msg": None, "log": [], "aux": {}} | fields
        self.emit("job_error", f"Error in rule {rule}", logging.ERROR, jobid=job, rule_name=rule, **values)

    def ends_in_slurm(self, job: int, state: str, *, log: str = "", slurm_log: str = "17.log") -> None:
        """Let a SLURM job end with a state that the plugin sees."""
        message = f"SLURM-job '17' failed, SLURM status is: '{state}'. {ADVICE}"
        self.errs(job, rule_msg=message, log=[*([log] if log else []), slurm_log], aux={"external_jobid": "17"})

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    @property
    def only(self) -> FailedJob:
        (row,) = self.failures.failed
        return row


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    return Run(tmp_path)


LOGS = {
    "a stage's own problem": (
        "2026: 3 of 5\nConfigError: expected 64; found 3.\n",
        ("2026: 3 of 5", "ConfigError: expected 64; found 3."),
    ),
    "a traceback": (
        "Traceback\n  File 'a'\n\n    raise ValueError\nValueError: b\n",
        ("File 'a'", "raise ValueError", "ValueError: b"),
    ),
    "one line": ("Bus went away\n", ("Bus went away",)),
    "nothing": ("", ("RuleException:", "CalledProcessError:", "Command 'x' returned non-zero exit status 2.")),
}


@pytest.mark.parametrize(("text", "lines"), LOGS.values(), ids=LOGS)
def test_a_failed_job_has_the_last_lines_of_the_stages_log(run: Run, text: str, lines: tuple[str, ...]) -> None:
    log = run.write("log.txt", text)
    run.starts(1, log=log)
    run.fails(1, log=log)
    job = run.only
    assert (job.rule, job.wildcards, job.attempts, job.ended, job.lines) == ("train", "seed=0", 1, "", lines)
    assert (job.logs, job.slurm_job, job.slurm_logs) == ([log], "", ())


@pytest.mark.parametrize("state", STATES)
def test_a_state_of_slurm_is_told_before_the_stages_log(run: Run, state: str) -> None:
    log = run.write("log.txt", "ValueError: a warning that was caught\n")
    run.starts(1, log=log)
    run.ends_in_slurm(1, "FAILED", log=log)
    run.starts(1, log=log)
    run.ends_in_slurm(1, state, log=log)
    row = run.only
    assert (row.ended, row.lines) == (state, ("ValueError: a warning that was caught",))
    assert (row.attempts, row.logs, row.slurm_job, row.slurm_logs) == (2, [log], "17", ["17.log"])


CANCELLED = "slurmstepd-n1: error: *** JOB 16 ON n1 CANCELLED AT 2026-11-21T17:43:43 DUE TO {} ***"


def test_a_refused_submission_says_what_sbatch_said(run: Run) -> None:
    log = run.write("log.txt", "ValueError: of the attempt before\n")
    text = [
        "SLURM sbatch failed. The error message was 'sbatch: error: Memory specification can not be satisfied",
        "sbatch: error: Batch job submission failed: Requested node configuration is not available'.",
        "    sbatch call:",
        f"        sbatch --parsable {ADVICE}",
    ]
    message = "\n".join(text)
    run.starts(1, log=log)
    run.ends_in_slurm(1, "FAILED", log=log)
    run.starts(1, log=log)
    run.errs(1, rule_msg=message, log=[log])
    displayed = " ".join(run.only.lines)
    assert "Requested node configuration is not available" in displayed
    assert "of the attempt before" not in displayed
    assert (run.only.ended, run.only.slurm_job, run.only.slurm_logs) == ("", "", ())


def test_a_missing_output_is_a_failure_although_no_job_error_is_told(run: Run) -> None:
    problem = (
        'MissingOutputException in rule train in file "Snakefile", line 19:\nJob 3  completed successfully, but some '
        "output files are missing. Missing files after 5 seconds. This might be due to filesystem latency. If that is "
        "the case, consider to increase the wait time with --latency-wait:\na/b.txt (missing locally)\n"
        "c.txt (missing locally, parent dir not present)"
    )
    run.starts(3)
    run.emit("error", problem, logging.ERROR, exception="MissingOutputException")
    assert run.only.lines[-2:] == ("a/b.txt (missing locally)", "c.txt (missing locally, parent dir not present)")


def test_problems_of_parallel_jobs_do_not_mix(run: Run) -> None:
    """Both problems appear before the first error: only the thread assigns each to its job."""
    run.starts(1)
    run.starts(2)
    barrier = threading.Barrier(2, timeout=60)

    def fail(job: int, name: str) -> None:
        run.emit("error", f"Command 'x' died with <Signals.{name}: 1>.", logging.ERROR)
        barrier.wait()
        run.errs(job)

    threads = [threading.Thread(target=fail, args=words) for words in ((1, "SIGINT"), (2, "SIGTERM"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [row.ended for row in run.failures.failed] == ["SIGINT", "SIGTERM"]


def half_done(run: Run, *, status: int = 2) -> None:
    """One of two `train` finished, the other failed."""
    run.starts(1)
    run.starts(2)
    run.finishes(1)
    run.fails(2, status=status)


def test_the_summary_shows_each_failed_job(run: Run) -> None:
    half_done(run, status=137)
    run.starts(12, "score", log="absent.txt", wildcards={"policy": "baseline/oracle", "seed": "1"})
    run.fails(12, "score", log="absent.txt")
    assert run.failures.summary() == (
        "2 jobs failed:\n"
        "train  seed=0  attempts: 1\n"
        "    SIGKILL: mostly for want of memory: raise its mem_mb in the profile\n"
        "    RuleException:\n"
        "    CalledProcessError:\n"
        "    Command 'x' returned non-zero exit status 137.\n"
        "score  policy=baseline/oracle, seed=1  attempts: 1\n"
        "    RuleException:\n"
        "    CalledProcessError:\n"
        "    Command 'x' returned non-zero exit status 2.\n"
        "    log: absent.txt\n"
        "Finished results are kept; the same command continues the run.\n"
    )
