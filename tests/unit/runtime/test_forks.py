"""A forked job is what a fresh process would be, and nothing outlives whoever asked for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from lever_pipe.runtime.forks import ForkedJob, Forks, Servers

HERE = str(Path(__file__).parents[1])
ENVIRONMENT = os.environ | {"PYTHONPATH": HERE, "OMP_NUM_THREADS": "1"}
MODULES = ["forked_calls"]
SOON = 600.0  # seconds; for who hangs: without bytecode a busy machine imports for minutes

Start = Callable[..., ForkedJob]


@pytest.fixture(scope="module")
def server() -> Iterator[Forks]:
    forks = Forks(MODULES, ENVIRONMENT)
    assert forks.until_ready(SOON)
    yield forks
    forks.close()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def start(server: Forks, log: Path) -> Start:
    def started(*words: str, **environment: str) -> ForkedJob:
        job = server.start(words, log=str(log), environment=ENVIRONMENT | environment)
        assert job is not None
        return job

    return started


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_job_that_has_ended_can_be_looked_at_until_its_status_is_read(start: Start) -> None:
    job = start("exit", "3")
    job.ended.result(SOON)
    assert psutil.Process(job.pid).status() == psutil.STATUS_ZOMBIE

    assert job.wait() == 3
    until(lambda: not psutil.pid_exists(job.pid))


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("say", "a", "b"), 0, "here {folder} a b\n"),
        (("exit", "3"), 3, ""),
        (("raise",), 1, "RuntimeError: broken"),
        (("kill",), -signal.SIGKILL, ""),
    ],
)
def test_a_job_ends_as_a_process_would(
    words: tuple[str, ...], status: int, said: str, start: Start, log: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log.write_text("of an earlier attempt, and longer than what follows")
    job = start(*words, SAID="here")
    assert job.wait(SOON) == job.poll() == job.returncode == status
    text = log.read_text()
    assert "earlier" not in text
    assert said.format(folder=tmp_path) in text


def test_a_job_leaves_nothing_to_the_next(start: Start, log: Path) -> None:
    assert start("spoil").wait(SOON) == 0
    assert start("say", "x", SAID="clean").wait(SOON) == 0
    assert log.read_text() == f"clean {Path.cwd()} x\n"


def test_a_job_does_not_ask_git_and_libraries_again(start: Start, log: Path) -> None:
    for _ in range(2):
        assert start("surroundings").wait(SOON) == 0
        assert log.read_text() == "asked 1 times\n"  # by the server


def test_jobs_run_side_by_side(start: Start) -> None:
    jobs = [start("sleep", "0.5") for _ in range(4)]
    assert len({job.pid for job in jobs}) == 4
    assert all(job.poll() is None for job in jobs)
    assert [job.wait(SOON) for job in jobs] == [0] * 4


@pytest.mark.parametrize(
    ("word", "number", "status", "said"),
    [
        ("sleep", signal.SIGTERM, -signal.SIGTERM, ""),
        ("sleep", signal.SIGKILL, -signal.SIGKILL, ""),
        ("sleep", signal.SIGINT, 128 + signal.SIGINT, "KeyboardInterrupt"),
        ("unwind", signal.SIGTERM, 128 + signal.SIGTERM, ""),
    ],
)
def test_signals_reach_a_job(word: str, number: int, status: int, said: str, start: Start, log: Path) -> None:
    job = start(word, "60")
    until(lambda: log.exists() and "asleep" in log.read_text())
    job.send_signal(number)
    assert job.wait(SOON) == status
    assert said in log.read_text()
    job.kill()  # of an ended job, whose number another process may have by now: nothing


def test_a_log_that_cannot_be_written_fails_the_job(server: Forks, tmp_path: Path) -> None:
    job = server.start(["say"], log=str(tmp_path / "none" / "log"), environment=ENVIRONMENT)
    assert job is not None
    assert job.wait(SOON) == 1


def test_without_a_ready_server_nothing_is_forked(log: Path) -> None:
    slow, broken = Forks(MODULES, ENVIRONMENT), Forks(["no_such_module"], ENVIRONMENT)
    try:
        assert slow.start(["say"], log=str(log), environment=ENVIRONMENT) is None
        assert not broken.until_ready(SOON)
        assert broken.start(["say"], log=str(log), environment=ENVIRONMENT) is None
    finally:
        slow.close()
        broken.close()
    assert slow.start(["say"], log=str(log), environment=ENVIRONMENT) is None
    assert not log.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_when_a_server_dies_so_do_its_jobs(number: int, log: Path) -> None:
    forks = Forks(MODULES, ENVIRONMENT)
    assert forks.until_ready(SOON)
    job = forks.start(["sleep", "60"], log=str(log), environment=ENVIRONMENT)
    assert job is not None
    child = psutil.Process(job.pid)
    forks._server.send_signal(number)
    if number == signal.SIGSTOP:
        forks._server.kill()
    assert job.wait(SOON) == -signal.SIGKILL
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    assert forks.start(["say"], log=str(log), environment=ENVIRONMENT) is None
    forks.close()


OWNER = """
import os, signal, sys, time
from lever_pipe.runtime.forks import Forks
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what it starts in the background ignore it
forks = Forks(["forked_calls"], os.environ)
forks.until_ready(600)
job = forks.start([{word!r}, "60"], log={log!r}, environment=os.environ)
print(forks._server.pid, job.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("word", "number"), [("sleep", signal.SIGKILL), ("unwind", signal.SIGTERM), ("unwind", signal.SIGINT)]
)
def test_when_the_owner_dies_nothing_is_left(word: str, number: int, log: Path) -> None:
    """SIGINT goes to the whole group, as Ctrl-C does."""
    code = OWNER.format(word=word, log=str(log))
    with subprocess.Popen(
        [sys.executable, "-c", code], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as owner:  # fmt: skip
        assert owner.stdout is not None
        left = [psutil.Process(int(pid)) for pid in owner.stdout.readline().split()]
        until(lambda: log.exists() and "asleep" in log.read_text())
        if number == signal.SIGINT:
            os.killpg(owner.pid, number)
        else:
            owner.send_signal(number)
        until(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in left))


def test_jobs_of_other_threads_have_a_server_of_their_own(log: Path) -> None:
    servers = Servers(MODULES)
    try:
        for threads in ("1", "2", "1", "2", "3"):
            asked = {"log": str(log), "environment": ENVIRONMENT | {"OMP_NUM_THREADS": threads}}
            assert servers.start(["say"], **asked) is None
        assert servers._servers == {}, "two jobs are sooner without"
        for threads in ("1", "2", "1"):
            servers.start(["say"], log=str(log), environment=ENVIRONMENT | {"OMP_NUM_THREADS": threads})
        assert sorted(servers._servers) == ["1", "2"]
        assert all(server.until_ready(SOON) for server in servers._servers.values())
        job = servers.start(["say", "x"], log=str(log), environment=ENVIRONMENT)
        assert job is not None
        assert job.wait(SOON) == 0
    finally:
        servers.close()
