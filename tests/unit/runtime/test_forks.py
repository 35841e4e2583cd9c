"""A forked job behaves like a fresh process, and no process outlives its client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from lever_pipe.runtime import forks as module
from lever_pipe.runtime.forks import Forks, call_in

HERE = str(Path(__file__).parents[1])
ENVIRONMENT = os.environ | {"PYTHONPATH": HERE, "OMP_NUM_THREADS": "1"}
MODULES = ["forked_calls"]
SOON = 600.0  # seconds; for who hangs: without bytecode a busy machine imports for minutes

Start = Callable[..., Future[int]]


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
    def started(*words: str, **environment: str) -> Future[int]:
        return server.start(words, log=str(log), environment=ENVIRONMENT | environment)

    return started


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def children(server: Forks, n: int) -> list[psutil.Process]:
    """Return the processes of n jobs that run."""
    found: list[psutil.Process] = []

    def are_there() -> bool:
        found[:] = psutil.Process(server._server.pid).children()
        return len(found) == n

    until(are_there)
    return found


@pytest.mark.parametrize(
    ("words", "status", "output"),
    [
        (("say", "a", "b"), 0, "here {folder} a b\n"),
        (("exit", "3"), 3, ""),
        (("raise",), 1, "RuntimeError: broken"),
        (("kill",), -signal.SIGKILL, ""),
    ],
)
def test_a_job_ends_as_a_process_would(
    words: tuple[str, ...], status: int, output: str, start: Start, log: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log.write_text("of an earlier attempt, and longer than what follows")
    job = start(*words, REPLY="here")
    assert job.result(SOON) == status
    text = log.read_text()
    assert "earlier" not in text
    assert output.format(folder=tmp_path) in text


def test_a_job_does_not_ask_git_and_libraries_again(start: Start, log: Path) -> None:
    for _ in range(2):
        assert start("surroundings").result(SOON) == 0
        assert log.read_text() == "asked 1 times\n"  # by the server


def test_jobs_run_side_by_side(start: Start, server: Forks) -> None:
    jobs = [start("sleep", "1") for _ in range(4)]
    children(server, 4)
    assert not any(job.done() for job in jobs)
    assert [job.result(SOON) for job in jobs] == [0] * 4


@pytest.mark.parametrize(
    ("word", "number", "status", "text"),
    [
        ("sleep", signal.SIGTERM, -signal.SIGTERM, ""),
        ("sleep", signal.SIGKILL, -signal.SIGKILL, ""),
        ("sleep", signal.SIGINT, 128 + signal.SIGINT, "KeyboardInterrupt"),
        ("unwind", signal.SIGTERM, 128 + signal.SIGTERM, ""),
    ],
)
def test_signals_reach_a_job(
    word: str, number: int, status: int, text: str, start: Start, server: Forks, log: Path
) -> None:
    job = start(word, "60")
    until(lambda: log.exists() and "asleep" in log.read_text())
    children(server, 1)[0].send_signal(number)
    assert job.result(SOON) == status
    assert text in log.read_text()


def test_a_log_that_cannot_be_written_fails_the_job(server: Forks, tmp_path: Path) -> None:
    job = server.start(["say"], log=str(tmp_path / "none" / "log"), environment=ENVIRONMENT)
    assert job.result(SOON) == 1


def test_a_server_that_cannot_import_forks_nothing(log: Path) -> None:
    broken = Forks(["no_such_module"], ENVIRONMENT)
    assert not broken.until_ready(SOON)
    assert broken.start(["say"], log=str(log), environment=ENVIRONMENT).result(SOON) == -signal.SIGKILL
    broken.close()
    assert not log.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_when_a_server_dies_so_do_its_jobs(number: int, log: Path) -> None:
    forks = Forks(MODULES, ENVIRONMENT)
    assert forks.until_ready(SOON)
    job = forks.start(["sleep", "60"], log=str(log), environment=ENVIRONMENT)
    (child,) = children(forks, 1)
    forks._server.send_signal(number)
    if number == signal.SIGSTOP:
        forks._server.kill()
    assert job.result(SOON) == -signal.SIGKILL
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    assert not forks.ready
    forks.close()


OWNER = """
import os, signal, sys, time, psutil
from lever_pipe.runtime.forks import Forks
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what it starts in the background ignore it
forks = Forks(["forked_calls"], os.environ)
forks.until_ready(600)
job = forks.start([{word!r}, "60"], log={log!r}, environment=os.environ)
server = psutil.Process(forks._server.pid)
while not server.children():
    time.sleep(0.01)
print(server.pid, server.children()[0].pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("word", "number"), [("sleep", signal.SIGKILL), ("unwind", signal.SIGTERM), ("unwind", signal.SIGINT)]
)
def test_when_the_owner_dies_nothing_is_left(word: str, number: int, log: Path) -> None:
    """Send SIGINT to the whole group, as Ctrl-C does."""
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


def test_jobs_of_other_threads_have_a_server_of_their_own(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, empty in (("_modules", []), ("_servers", {}), ("_requests", Counter())):
        monkeypatch.setattr(module, name, empty)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

    def server_for(threads: str) -> Forks | None:
        return module.server_for(ENVIRONMENT | {"PATH": path, "OMP_NUM_THREADS": threads})

    assert [server_for("1") for _ in range(3)] == [None] * 3, "another workflow"
    module.fork_calls(MODULES)
    try:
        module._requests.clear()
        assert [server_for(threads) for threads in ("1", "2", "1", "2", "3")] == [None] * 5
        assert not module._servers, "two jobs are sooner without"
        for threads in ("1", "2", "1"):
            server_for(threads)
        assert sorted(module._servers) == ["1", "2"]
        assert all(server.until_ready(SOON) for server in module._servers.values())
        server = server_for("1")
        assert server is not None
        assert server.start(["say", "x"], log=str(log), environment=ENVIRONMENT).result(SOON) == 0
        assert module.server_for(ENVIRONMENT | {"PATH": "/usr/bin"}) is None, "another Python"
    finally:
        module.close()


PLAIN = "python -m lever_pipe stage train --spec '{\"a\": 1}' 'x=a b/~c' --threads 1 > log.txt 2>&1"


@pytest.mark.parametrize(
    "command",
    [
        PLAIN.replace("> log", ">> log"),
        PLAIN.replace(" 2>&1", ""),
        PLAIN + "; true",
        PLAIN.replace("--threads 1", "--threads $(nproc)"),
        PLAIN.replace("--threads 1", "--threads $N"),
        PLAIN.replace("--threads 1", "*"),
        PLAIN.replace("--threads 1", "| tee x"),
        PLAIN.replace("'x=a b/~c'", "~/x"),
        "nice " + PLAIN,
        "A=1 " + PLAIN,
        PLAIN.replace("lever_pipe", "lever_pipe_x"),
        PLAIN.replace("python", "python3"),
        PLAIN.replace("'x=a", "x=a"),
        "true",
        "",
    ],
)
def test_anything_else_is_left_to_the_shell(command: str) -> None:
    assert call_in(command) is None


def test_a_job_has_the_environment_that_snakemake_gives_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, str]] = []
    own = import_module("snakemake.shell")
    fake = SimpleNamespace(Popen=lambda *_, env, **__: given.append(env) or SimpleNamespace(wait=lambda: 0))
    monkeypatch.setattr(own, "sp", SimpleNamespace(**vars(subprocess) | vars(fake)))
    own.shell("true", threads=3, resources={"tmpdir": "/here"})
    made = module.environment_of(SimpleNamespace(threads=3, resources={"tmpdir": "/here"}))
    # The package sets the threads of OpenBLAS itself, when it is imported.
    own_names = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS")
    assert {n: v for n, v in given[0].items() if n not in own_names} == {
        n: v for n, v in made.items() if n not in own_names
    }


def test_a_job_leaves_nothing_to_the_next(start: Start, log: Path) -> None:
    assert start("spoil").result(SOON) == 0
    assert start("say", "x", REPLY="clean").result(SOON) == 0
    assert log.read_text() == f"clean {Path.cwd()} x\n"
