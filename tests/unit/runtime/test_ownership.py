"""One writer per artifact: real processes that compete for the same one."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import multiprocessing
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace

import pytest
from builders import embedding_arrays

from lever_pipe.__main__ import _parser, is_complete, main
from lever_pipe.base import atomic, storage
from lever_pipe.experiment.selector import InitialiseSelectorConfig, Selector
from lever_pipe.runtime import ownership
from lever_pipe.runtime.ownership import lock_of, owned, owner_of, this_process

FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(ownership, "LOG_SECONDS", 0.1)


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return tmp_path / "run.json"


def start(function: Callable[..., object], *arguments: object) -> BaseProcess:
    process = FORK.Process(target=function, args=arguments)
    process.start()
    return process


def end(*processes: BaseProcess) -> list[int | None]:
    for process in processes:
        process.join(60)
        assert process.exitcode is not None, "a process hangs"
    return [process.exitcode for process in processes]


def note(folder: Path, *words: object) -> None:
    """Append a line to the protocol, whole."""
    handle = os.open(folder / "protocol", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, " ".join(map(str, words)).encode() + b"\n")
    os.close(handle)


def protocol(folder: Path) -> list[list[str]]:
    return [line.split() for line in (folder / "protocol").read_text().splitlines()]


def on_waiting(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[float], object], clock: Callable[[], float] = time.monotonic
) -> None:
    """Let a process that waits for a lock run a function instead of sleeping."""
    monkeypatch.setattr(ownership, "time", SimpleNamespace(monotonic=clock, sleep=act))


def require_one_at_a_time(lines: list[list[str]], killed: set[str]) -> None:
    """Check that each owner starts only after the previous one has ended or was killed."""
    at_work = None
    for what, who in lines:
        if what == "begin":
            assert at_work is None or at_work in killed
            at_work = who
        elif what == "end":
            assert at_work == who
            at_work = None


def test_an_owner_leaves_nothing_after(manifest: Path) -> None:
    with owned(manifest) as waited:
        assert not waited
        assert [path.name for path in manifest.parent.iterdir()] == [".run.json.owner"]
        found = owner_of(manifest)
        assert found is not None
        assert found.pid == os.getpid()
    assert not list(manifest.parent.iterdir())
    with pytest.raises(ZeroDivisionError), owned(manifest):
        raise ZeroDivisionError
    assert not list(manifest.parent.iterdir())


def test_of_two_at_once_one_makes_and_one_leaves(manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = FORK.Event()
    on_waiting(monkeypatch, lambda _: waits.set() or time.sleep(0.01))

    def job() -> None:
        with owned(manifest) as waited:
            if waited and manifest.exists():
                note(manifest.parent, "left", os.getpid())
                return
            note(manifest.parent, "begin", os.getpid())
            assert waits.wait(60)  # the other is there
            note(manifest.parent, "end", os.getpid())
            manifest.touch()

    assert end(start(job), start(job)) == [0, 0]
    assert [what for what, _ in protocol(manifest.parent)] == ["begin", "end", "left"]


def test_many_jobs_many_times_some_killed_never_two_at_once(manifest: Path) -> None:
    barrier = FORK.Barrier(5)

    def job(number: int) -> None:
        chance = random.Random(number)
        barrier.wait()
        for turn in range(4):
            with owned(manifest):
                note(manifest.parent, "begin", os.getpid())
                time.sleep(chance.random() * 0.01)
                if number == 0 and turn == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                note(manifest.parent, "end", os.getpid())

    processes = [start(job, number) for number in range(5)]
    assert end(*processes) == [-signal.SIGKILL, 0, 0, 0, 0]
    lines = protocol(manifest.parent)
    assert sum(what == "end" for what, _ in lines) == 4 * 4 + 1
    require_one_at_a_time(lines, killed={str(processes[0].pid)})
    with owned(manifest):  # the killed one may have been the last
        pass
    assert [path.name for path in manifest.parent.iterdir()] == ["protocol"]


def test_a_killed_owner_is_replaced_at_once(manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def job() -> None:
        with owned(manifest):
            os.kill(os.getpid(), signal.SIGKILL)

    assert end(start(job)) == [-signal.SIGKILL]
    assert lock_of(manifest).exists()
    rests: list[float] = []
    on_waiting(monkeypatch, rests.append)
    with owned(manifest) as waited:
        assert waited
    assert rests == []


def test_a_sweep_removes_what_the_dead_left_and_nothing_else(manifest: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    here = atomic.machine()
    cases = {
        ".dead.json.owner": (this_process().model_dump_json(), False),
        ".torn.json.owner": ("{", False),
        f".{here}.{gone.pid}.01234567.tmp": ("", False),
        f".{here}.{os.getpid()}.01234567.tmp": ("", True),
        f".another.{gone.pid}.01234567.tmp": ("", True),
    }
    for name, (text, _) in cases.items():
        (manifest.parent / name).write_text(text)
    with owned(manifest):
        ownership.sweep(manifest.parent)
        stay = {name for name, (_, stays) in cases.items() if stays} | {lock_of(manifest).name}
        assert {path.name for path in manifest.parent.iterdir() if path.name.startswith(".")} == stay


def test_a_file_system_without_locks_is_told(
    manifest: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with owned(manifest) as waited:
        assert not waited
    assert "no locks" in caplog.text
    assert not lock_of(manifest).exists()


# The command line.

FILES = ("embeddings", "selector", "optimiser", "metrics", "manifest")
STAGE = InitialiseSelectorConfig(preset="p", selector=Selector(width=8), seed=3)


def call(folder: Path, **changes: object) -> list[str]:
    spec = json.dumps({"code": "x", "config": STAGE.model_copy(update=changes).model_dump(mode="json")})
    return ["initialise_selector", *(f"{name}={folder / name}" for name in FILES), "--spec", spec]


@contextmanager
def another_job(folder: Path) -> Iterator[None]:
    """Let another process own the artifact, until `main` waits for it."""

    def job() -> None:
        with owned(folder / "manifest"):
            os.kill(os.getpid(), signal.SIGKILL)

    end(start(job))
    yield


@pytest.fixture
def artefact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a stage's files, made once."""
    storage.write_arrays(tmp_path / "embeddings", embedding_arrays(4))
    assert main(call(tmp_path)) == 0
    for name in FILES[1:]:
        os.utime(tmp_path / name, (10**9, 10**9))  # a rewritten file is newer even on the coarsest clock
    return tmp_path


def times_of(folder: Path) -> dict[str, int]:
    return {name: (folder / name).stat().st_mtime_ns for name in FILES}


def test_a_duplicate_leaves_what_is_whole(artefact: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lever_pipe")
    before = times_of(artefact)
    with another_job(artefact):
        assert main(call(artefact)) == 0
    assert times_of(artefact) == before
    assert "another job has produced the same artifact" in caplog.text
    assert sorted(path.name for path in artefact.iterdir()) == sorted(FILES)


def test_a_duplicate_with_another_spec_runs(artefact: Path) -> None:
    before = times_of(artefact)
    with another_job(artefact):
        assert main(call(artefact, seed=4)) == 0
    assert all(before[name] < now for name, now in times_of(artefact).items() if name != "embeddings")
    assert is_complete(_parser().parse_args(call(artefact, seed=4)))
    assert not is_complete(_parser().parse_args(call(artefact)))


def test_sigterm_gives_the_lock_back(
    artefact: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lever_pipe.stages import selector_training as stage

    closed: list[bool] = []

    def slow(*_: object, **__: object) -> None:
        assert lock_of(artefact / "manifest").exists()
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)  # SLURM's step and its shell may both send it
            time.sleep(20)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            closed.append(True)

    former = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(stage, "read_table", slow)
    assert main(call(artefact)) == 128 + 15
    assert closed == [True]
    assert not lock_of(artefact / "manifest").exists()
    assert "SIGTERM" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == former


def test_sigterm_ends_a_wait(artefact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_waiting(monkeypatch, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    with lock_of(artefact / "manifest").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # it never ends
        assert main(call(artefact)) == 128 + 15
    assert sorted(path.name for path in artefact.iterdir()) == sorted([*FILES, ".manifest.owner"])
