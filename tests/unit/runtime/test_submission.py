"""A submission that a busy SLURM refuses is repeated as it is; one that can never succeed is reported at once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from threading import Timer
from types import SimpleNamespace
from typing import Any

import pytest
from fake_slurm import MARK, FakeSlurm, on_path

from lever_pipe.runtime.slurm import submission

REPOSITORY = Path(__file__).parents[3]
SNAKEFILE = """
from lever_pipe.runtime.slurm import submission

submission.FIRST_PAUSE_SECONDS = submission.LONGEST_PAUSE_SECONDS = 0.05

rule one:
    output: "made"
    shell: "touch {output}"
"""
SBATCH = """#!/bin/sh
echo "$*" >> {folder}/submissions
refused=$([ "$(wc -l < {folder}/submissions)" -le {refusals} ] && echo yes)
if [ {accepts} = yes ] || [ ! "$refused" ]; then
    touch made
    echo '7|COMPLETED|rule_one' > {folder}/queue
fi
[ "$refused" ] && {{ echo "sbatch: error: Batch job submission failed: {error}" >&2; exit 1; }}
echo 7
"""
SQUEUE = """#!/bin/sh
[ -f {folder}/queue ] || exit 0
case "$*" in
*'%i|%T'*) cut -d '|' -f 1,2 {folder}/queue ;;
*%k*) cut -d '|' -f 1,3 {folder}/queue | tr '|' '\037' ;;
*) cut -d '|' -f 1,2 {folder}/queue | tr '|' '\037' ;;
esac
"""
BUSY = "Socket timed out on send/recv operation"
UNUSABLE = "Invalid partition name specified"


def run(folder: Path, *, error: str, refusals: int, accepts: bool = False) -> tuple[int, list[str], str]:
    """Return the exit status of a run, the calls of `sbatch`, and the log; `sbatch` fails so many times.

    Args:
        folder: of the run.
        error: message of `sbatch`.
        refusals: number of failed calls.
        accepts: whether the controller accepts the jobs of failed calls all the same.
    """
    fake = FakeSlurm(folder / "slurm")
    scripts = {
        "sbatch": SBATCH.format(folder=fake.folder, refusals=refusals, error=error, accepts="yes" if accepts else "no"),
        "squeue": SQUEUE.format(folder=fake.folder),
    }
    for name, text in scripts.items():
        (fake.folder / name).write_text(text)
    (folder / "Snakefile").write_text(SNAKEFILE)
    quick = ("--lever-slurm-init-seconds-before-status-checks", "1", "--max-status-checks-per-second", "5")
    profile = ("--lever-slurm-status-command", "squeue", "--jobs", "2", "--retries", "2", "--latency-wait", "1")
    memory = ("--default-resources", "mem_mb=1000*attempt", "runtime=5", "slurm_partition=main", "slurm_account=a")
    command = (sys.executable, "-m", "snakemake", "--executor", "lever-slurm", *profile, *quick, *memory)
    path = f"{fake.folder}{os.pathsep}{os.environ['PATH']}"
    for name in ("sacctmgr", "sinfo"):
        (fake.folder / name).write_text("#!/bin/sh\necho a\n")
        (fake.folder / name).chmod(0o755)
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    calls = (fake.folder / "submissions").read_text().splitlines()
    return done.returncode, calls, done.stdout + done.stderr


def memories(calls: list[str]) -> list[str]:
    return [match[1] for call in calls for match in re.finditer(r"--mem (\d+)", call)]


def test_a_busy_scheduler_costs_no_attempt_and_no_memory(tmp_path: Path) -> None:
    status, calls, messages = run(tmp_path, error=BUSY, refusals=10)
    assert status == 0, messages
    assert memories(calls) == ["1000"] * 11
    assert "Error in rule" not in messages


def test_a_refusal_that_stays_fails_at_once(tmp_path: Path) -> None:
    status, calls, messages = run(tmp_path, error=UNUSABLE, refusals=99)
    assert status == 1
    assert memories(calls) == ["1000", "2000", "3000"], "the attempts that the profile allows, as ever"
    assert UNUSABLE in messages


def test_a_job_that_the_controller_accepted_before_the_timeout_is_not_submitted_twice(tmp_path: Path) -> None:
    status, calls, messages = run(tmp_path, error=BUSY, refusals=1, accepts=True)
    assert status == 0, messages
    assert len(calls) == 1
    assert "has accepted job 7" in messages


MESSAGE = (
    "SLURM sbatch failed. The error message was '{}'.\n    sbatch call:\n        sbatch --comment 'Socket timed out'\n"
)


@pytest.mark.parametrize(
    ("error", "temporary"),
    [
        (f"sbatch: error: Batch job submission failed: {BUSY}", True),
        # snakemake-executor-plugin-slurm 313
        ("sbatch: error: Batch job submission failed: Unexpected message received", True),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)", True),
        ("sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying", True),
        # sisyphus 241: it passes when jobs of the user end; the limits of the same policy in size and time do not
        ("sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Job violates accounting/QOS policy", True),
        ("sbatch: error: QOSMaxWallDurationPerJobLimit\nsbatch: error: Job violates accounting/QOS policy", False),
        ("sbatch: error: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", False),
        (f"sbatch: error: invalid partition specified: gpus\nsbatch: error: {UNUSABLE}", False),
        ("sbatch: error: Invalid account or account/partition combination specified", False),
        # snakemake-executor-plugin-slurm 320
        ("sbatch: error: Requested node configuration is not available", False),
        ("/bin/sh: 1: sbatch: not found", False),
    ],
)
def test_temporary_errors_are_told_from_others(error: str, temporary: bool) -> None:
    assert submission.is_temporary(MESSAGE.format(error)) is temporary


def submissions(seconds: float, **reports: Any) -> submission.Submissions:
    nothing = {"report_submission": lambda *_: None, "report_error": lambda *_: None}
    executor = SimpleNamespace(run_uuid="lever_pipe_1f", slurm_logdir=Path("logs"))
    return submission.Submissions(executor, seconds, **nothing | reports)


class Busy:
    """A submission that is always refused."""

    def __init__(self, to: submission.Submissions) -> None:
        self.to, self.calls = to, 0

    def __call__(self, job: Any) -> None:
        self.calls += 1
        assert self.to.postpone(job, MESSAGE.format(BUSY))


class OneJob:
    """A job of Snakemake, as far as a submission looks at it."""

    name, wildcards = "one", None

    def is_group(self) -> bool:
        return False


@pytest.mark.parametrize("accepted", [False, True])
def test_after_the_time_limit_the_job_fails_unless_slurm_has_accepted_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accepted: bool
) -> None:
    queue = [("3", "rule_another"), ("4", "rule_one")]
    fake = on_path(tmp_path, monkeypatch)
    fake.answers("squeue", "".join(f"{MARK.join(row)}\n" for row in queue[: 1 + accepted]))
    errors, ids = list[str](), list[str]()
    to = submissions(
        0,
        report_error=lambda _, message: errors.append(message),
        report_submission=lambda _, job_id, log: ids.append(f"{job_id} {log}"),
    )
    busy = Busy(to)
    to.submit(OneJob(), busy)
    assert busy.calls == 1
    assert ids == (["4 logs/rule_one/4.log"] if accepted else [])
    assert len(errors) == (not accepted)
    assert all(BUSY in error and "lever-slurm-submission-timeout" in error for error in errors)


def test_ctrl_c_ends_a_pause_and_submits_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "FIRST_PAUSE_SECONDS", 3600.0)
    monkeypatch.setattr(submission, "LONGEST_PAUSE_SECONDS", 3600.0)
    errors: list[str] = []
    to = submissions(1e6, report_error=lambda _, message: errors.append(message))
    busy = Busy(to)
    cancel = Timer(0.1, to.cancelled.set)
    cancel.start()
    to.submit(OneJob(), busy)
    cancel.join()
    assert busy.calls == 1
    assert errors == []
