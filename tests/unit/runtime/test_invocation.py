"""Actions around the jobs of one call of Snakemake."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake.exceptions import WorkflowError, format_exception_to_string

from lever_pipe.base import atomic
from lever_pipe.base.errors import ConfigError, MachineError
from lever_pipe.runtime import invocation, snakemake_adapter


def test_a_problem_is_told_without_the_lines_that_it_passed() -> None:
    @contextmanager
    def passed() -> Iterator[None]:
        yield

    with pytest.raises(WorkflowError) as caught, passed(), snakemake_adapter.without_trace():
        raise ConfigError("a: expected b", found="c", do="Do d.")
    assert format_exception_to_string(caught.value, {}) == "ConfigError:\na: expected b; found c. Do d."


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a folder with the lock of an earlier run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(invocation, "_held", [])
    for path in (invocation.LOCKS / "0.input.lock", invocation.RUNNING):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    yield tmp_path
    for handle in invocation._held:
        handle.close()


@pytest.mark.parametrize("is_here", [True, False])
def test_the_lock_of_a_killed_run_is_removed_where_none_can_be_at_work(folder: Path, is_here: bool) -> None:
    invocation.RUNNING.write_text(atomic.machine() if is_here else "another")
    invocation.hold_folder()
    assert any(invocation.LOCKS.iterdir()) != is_here
    assert invocation.RUNNING.read_text() == atomic.machine()
    invocation.hold_folder()  # the same run plans again


def test_a_second_run_in_a_folder_is_refused_in_a_sentence(folder: Path) -> None:
    invocation.RUNNING.write_text(atomic.machine())
    with invocation.RUNNING.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(MachineError, match="no other run is at work; found one"):
            invocation.hold_folder()
    assert any(invocation.LOCKS.iterdir())


def test_an_input_of_a_time_to_come_gets_the_present_one(tmp_path: Path) -> None:
    ahead, past = tmp_path / "ahead", tmp_path / "past"
    for path, at in ((ahead, 2_051_222_400), (past, 1_000)):
        path.touch()
        os.utime(path, (at, at))
    invocation._set_back_future_times([SimpleNamespace(input=[str(ahead), str(past)])])
    assert ahead.stat().st_mtime <= time.time()
    assert past.stat().st_mtime == 1_000


def test_logs_of_finished_jobs_that_said_nothing_go(tmp_path: Path) -> None:
    files = {"a/run.json": "{}", "a/log.txt": "", "b.run.json": "{}", "b.log.txt": "text", "c/log.txt": ""}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    invocation.drop_empty_logs(tmp_path)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*log.txt")}
    assert left == {"b.log.txt", "c/log.txt"}  # a job without a manifest may still be at work


def test_the_scheduler_polls_once_a_job(tmp_path: Path) -> None:
    own = polls(tmp_path / "own", "leave_pace_to_cores(workflow.scheduler)")
    assert own <= JOBS + 2  # at the start, after each job, and for the target rule


JOBS = 6


def polls(folder: Path, pace: str) -> int:
    """Run jobs one by one and return the number of times that the scheduler checks ready jobs."""
    folder.mkdir()
    (folder / "Snakefile").write_text(SNAKEFILE.replace("JOBS", str(JOBS)).replace("PACE", pace))
    words = ("--cores", "1", "--scheduler", "greedy", "--verbose")
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "snakemake", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stderr.count("Ready jobs: ")


REPOSITORY = Path(__file__).parents[3]


SNAKEFILE = """
from lever_pipe.base import atomic
from lever_pipe.base.errors import MachineError
from lever_pipe.runtime import invocation, snakemake_adapter
from lever_pipe.runtime.snakemake_adapter import leave_pace_to_cores

rule all:
    input: expand("{n}", n=range(JOBS))

rule one:
    output: "{n}"
    shell: "sleep 0.2; touch {output}"

onstart:
    PACE
"""
