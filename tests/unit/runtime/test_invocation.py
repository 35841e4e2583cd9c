"""Actions around the jobs of one call of Snakemake."""

from __future__ import annotations

import fcntl
import os
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
