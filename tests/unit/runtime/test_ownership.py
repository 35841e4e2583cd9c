"""One writer an artefact: real processes that want the same one at once."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from builders import embedding_arrays

from lever_pipe.__main__ import _parser, is_made, main
from lever_pipe.base import atomic, storage
from lever_pipe.experiment.config import Selector
from lever_pipe.experiment.stage_configs import InitialiseSelectorConfig
from lever_pipe.runtime import ownership
from lever_pipe.runtime.ownership import (
    HANDED,
    Hold,
    Owner,
    Times,
    lock_of,
    owned,
    process_start,
    this_process,
)

FAST = Times(beat_s=0.02, limit_s=0.3, poll_s=0.01, ask_s=0.02, say_s=0.1, launch_s=60)
FORK = multiprocessing.get_context("fork")
NO_PROCESS = 2**22 + 1  # beyond the largest number that Linux gives


@pytest.fixture
def card(tmp_path: Path) -> Path:
    return tmp_path / "run.json"


def start(function: Callable[..., object], *arguments: object) -> BaseProcess:
    process = FORK.Process(target=function, args=arguments)
    process.start()
    return process


def end(*processes: BaseProcess) -> list[int | None]:
    for process in processes:
        process.join(20)
        assert process.exitcode is not None, "a process hangs"
    return [process.exitcode for process in processes]


def wait_for(condition: Callable[[], object]) -> None:
    limit = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.005)


def far(**changes: str) -> Owner:
    """Return an owner on another machine."""
    return this_process().model_copy(update={"host": "n7", "machine": "other", "pid": 12} | changes)


def put_lock(card: Path, owner: Owner, *, age_s: float = 0.0) -> Path:
    lock = lock_of(card)
    lock.write_text(owner.model_dump_json())
    then = time.time() - age_s
    os.utime(lock, (then, then))
    return lock


@contextmanager
def beating(lock: Path, owner: Owner) -> Iterator[None]:
    """Send another owner's heartbeats, and give its lock back in the end."""
    lock.write_text(owner.model_dump_json())
    hold = Hold(lock, owner, FAST, lambda reason: None)
    hold.start()
    try:
        yield
    finally:
        hold.release()


def hold_of(card: Path) -> Hold:
    hold = Hold(lock_of(card), this_process(), FAST, lambda reason: None)
    hold._own.write_text(hold._owner.model_dump_json())
    return hold


def note(folder: Path, *words: object) -> None:
    """Append a line to the protocol, whole."""
    handle = os.open(folder / "protocol", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, " ".join(map(str, words)).encode() + b"\n")
    os.close(handle)


def protocol(folder: Path) -> list[list[str]]:
    return [line.split() for line in (folder / "protocol").read_text().splitlines()]


def work(card: Path, *, seconds: float = 0.0) -> None:
    note(card.parent, "begin", os.getpid())
    time.sleep(seconds)
    note(card.parent, "end", os.getpid())


def require_one_at_a_time(lines: list[list[str]], killed: set[str]) -> None:
    """Check that nobody begins before the former ended or was killed."""
    at_work = None
    for what, who in lines:
        if what == "begin":
            assert at_work is None or at_work in killed
            at_work = who
        elif what == "end":
            assert at_work == who
            at_work = None


def test_an_owner_leaves_nothing_behind(card: Path) -> None:
    with owned(card, times=FAST) as hold:
        assert not hold.waited
        assert [path.name for path in card.parent.iterdir()] == [".run.json.owner"]
        found = Owner.model_validate_json(lock_of(card).read_text())
        assert (found.pid, found.started) == (os.getpid(), process_start(os.getpid()))
    assert not list(card.parent.iterdir())
    with pytest.raises(ZeroDivisionError), owned(card, times=FAST):
        raise ZeroDivisionError
    assert not list(card.parent.iterdir())


def test_a_lock_is_cheap(card: Path) -> None:
    begin = time.perf_counter()
    for _ in range(20):
        with owned(card):
            pass
    assert (time.perf_counter() - begin) / 20 < 0.05  # about 0.5 ms on an idle machine


def test_of_two_at_once_one_makes_and_one_leaves(card: Path) -> None:
    barrier = FORK.Barrier(2)

    def job() -> None:
        barrier.wait()
        with owned(card, times=FAST) as hold:
            if hold.waited and card.exists():
                note(card.parent, "left", os.getpid())
                return
            work(card, seconds=0.1)
            card.touch()

    assert end(start(job), start(job)) == [0, 0]
    assert [what for what, _ in protocol(card.parent)] == ["begin", "end", "left"]


@pytest.mark.parametrize("machines", ["one", "several"])
def test_many_jobs_many_times_some_killed_never_two_at_once(card: Path, machines: str) -> None:
    barrier = FORK.Barrier(5)
    times = FAST if machines == "one" else FAST._replace(limit_s=1.0)

    def job(number: int) -> None:
        if machines == "several":
            atomic.machine = lambda: f"{number}"  # type: ignore[assignment]
        chance = random.Random(number)
        barrier.wait()
        for turn in range(4):
            with owned(card, times=times):
                note(card.parent, "begin", os.getpid())
                time.sleep(chance.random() * 0.01)
                if number == 0 and turn == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                note(card.parent, "end", os.getpid())

    processes = [start(job, number) for number in range(5)]
    assert end(*processes) == [-signal.SIGKILL, 0, 0, 0, 0]
    lines = protocol(card.parent)
    assert sum(what == "end" for what, _ in lines) == 4 * 4 + 1
    require_one_at_a_time(lines, killed={str(processes[0].pid)})
    with owned(card, times=times):  # the killed one may have been the last
        pass
    assert [path.name for path in card.parent.iterdir()] == ["protocol"]


def test_a_killed_owner_is_replaced_at_once(card: Path) -> None:
    def job() -> None:
        with owned(card):
            os.kill(os.getpid(), signal.SIGKILL)

    assert end(start(job)) == [-signal.SIGKILL]
    assert lock_of(card).exists()
    begin = time.monotonic()
    with owned(card, times=FAST._replace(limit_s=1000)) as hold:
        assert hold.waited
    assert time.monotonic() - begin < 5


def test_a_number_that_is_used_again_is_another_process(card: Path) -> None:
    put_lock(card, this_process().model_copy(update={"started": "1"}))
    with owned(card, times=FAST._replace(limit_s=1000)):
        pass
    put_lock(card, this_process().model_copy(update={"pid": NO_PROCESS}))
    with owned(card, times=FAST._replace(limit_s=1000)):
        pass


def test_a_sweep_removes_what_the_dead_left_and_nothing_else(card: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    here, dead = atomic.machine(), this_process().model_copy(update={"started": "1"})
    cases = {
        ".dead.json.owner": (dead.model_dump_json(), False),
        ".dead.json.owner.heir": (dead.model_dump_json(), False),
        ".alive.json.owner": (this_process().model_dump_json(), True),
        ".elsewhere.json.owner": (far().model_dump_json(), True),
        ".torn.json.owner": ("{", True),  # of another version, or about to be written
        f".{here}.{gone.pid}.01234567.tmp": ("", False),  # killed before its first word: its name says who it was
        f".{here}.{os.getpid()}.01234567.tmp": ("", True),
        f".another.{gone.pid}.01234567.tmp": ("", True),
    }
    for name, (text, _) in cases.items():
        (card.parent / name).write_text(text)
    ownership.sweep(card.parent)
    stay = {name for name, (_, stays) in cases.items() if stays}
    assert {path.name for path in card.parent.iterdir()} == stay


def test_what_a_killed_process_left_before_its_lock_goes_with_the_next(card: Path) -> None:
    """SIGKILL may fall between the file that is to become the lock and the lock."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    dead, alive = (card.parent / f".{atomic.machine()}.{pid}.01234567.tmp" for pid in (gone.pid, os.getpid()))
    for path in (dead, alive):
        path.touch()
    with owned(card):
        assert (dead.exists(), alive.exists()) == (False, True)


def test_a_zombie_is_no_owner() -> None:
    may_end = FORK.Event()
    process = start(may_end.wait)
    assert process.pid is not None
    owner = this_process().model_copy(update={"pid": process.pid, "started": process_start(process.pid)})
    assert owner.is_running()
    may_end.set()
    wait_for(lambda: not process_start(owner.pid))
    os.kill(owner.pid, 0)  # nobody has waited for it: the number is taken
    assert owner.is_running() is False
    end(process)


def test_a_silent_owner_on_this_machine_lives(card: Path) -> None:
    hold = hold_of(card)
    put_lock(card, this_process(), age_s=1000)
    lock = ownership._read(lock_of(card))
    assert lock is not None
    assert hold._may_write(lock)


@pytest.mark.parametrize("owner", [far(), this_process().model_copy(update={"started": ""})], ids=["far", "unknown"])
def test_heartbeats_keep_an_owner_whose_process_cannot_be_seen(card: Path, owner: Owner) -> None:
    taken: list[float] = []

    def duplicate() -> None:
        with owned(card, times=FAST._replace(limit_s=0.5)):
            taken.append(time.monotonic())

    with beating(lock_of(card), owner):
        thread = threading.Thread(target=duplicate)
        thread.start()
        time.sleep(0.75)  # longer than the limit
        assert not taken
        freed = time.monotonic()
    thread.join()
    assert taken[0] >= freed


def test_a_silent_owner_elsewhere_is_replaced_after_the_limit(card: Path) -> None:
    put_lock(card, far())
    begin = time.monotonic()
    with owned(card, times=FAST):
        assert time.monotonic() - begin > 0.9 * FAST.limit_s
    put_lock(card, far(), age_s=30.1)
    begin = time.monotonic()
    with owned(card, times=FAST._replace(limit_s=30)):
        assert time.monotonic() - begin < 20


def test_a_heartbeat_begins_with_the_hold(card: Path) -> None:
    hold = hold_of(card)
    os.utime(hold._own, (1, 1))
    assert hold._take()
    assert time.time() - lock_of(card).stat().st_mtime < 20
    heir = hold_of(card)
    os.utime(heir._own, (1, 1))
    judged = ownership._read(lock_of(card))
    assert judged is not None
    assert heir._take_over(judged)
    assert time.time() - lock_of(card).stat().st_mtime < 20


def test_a_lock_of_another_version_is_judged_by_its_age(card: Path) -> None:
    lock = put_lock(card, far())
    lock.write_text("{")
    begin = time.monotonic()
    with owned(card, times=FAST):
        assert time.monotonic() - begin > 0.9 * FAST.limit_s


def fake_squeue(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a squeue before all others that says what the returned file holds, and fails without it."""
    state, program = folder / "state", folder / "bin" / "squeue"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$*" >> {folder}/asked\ncat {state} 2>/dev/null\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return state


def test_slurm_speaks_for_a_silent_job(card: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = fake_squeue(tmp_path, monkeypatch)
    hold = hold_of(card)
    monkeypatch.setattr(hold, "_is_silent", lambda lock: True)
    found = ownership._Lock("", 0.0, far(job="17"))
    for said, lives in {"RUNNING": True, "COMPLETING": True, "PENDING": False, "CANCELLED": False, "": False}.items():
        state.write_text(f"{said}\n")
        assert hold._may_write(found) is lives, said
    state.unlink()
    assert not hold._may_write(found)
    assert set((tmp_path / "asked").read_text().splitlines()) == {"--noheader --states=all --jobs=17 --format=%T"}


def test_a_requeued_job_does_not_wait_for_itself(card: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_squeue(tmp_path, monkeypatch).write_text("RUNNING\n")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    put_lock(card, far(job="17"), age_s=1000)
    with owned(card, times=FAST):
        assert not (tmp_path / "asked").exists()


def test_a_slow_judge_takes_nothing_over(card: Path) -> None:
    lock = put_lock(card, far(), age_s=1000)
    judged = ownership._read(lock)
    assert judged is not None
    fast, slow = hold_of(card), hold_of(card)
    assert fast._take_over(judged)
    text = lock.read_text()
    assert not slow._take_over(judged)
    assert (lock.read_text(), Owner.model_validate_json(text).token) == (text, fast._owner.token)
    assert sorted(path.name for path in card.parent.iterdir()) == sorted([lock.name, slow._own.name])


def test_an_owner_that_beats_again_is_not_replaced(card: Path) -> None:
    lock = put_lock(card, far(), age_s=1000)
    judged = ownership._read(lock)
    assert judged is not None
    os.utime(lock)
    assert not hold_of(card)._take_over(judged)
    assert Owner.model_validate_json(lock.read_text()).machine == "other"


def test_of_two_heirs_one_takes_over(card: Path) -> None:
    lock = put_lock(card, far(), age_s=1000)
    judged = ownership._read(lock)
    assert judged is not None
    heir = put_lock(card, far()).with_name(f"{lock.name}.heir")
    lock.rename(heir)
    lock.write_text(judged.text)
    os.utime(lock, (judged.beat, judged.beat))
    hold = hold_of(card)
    assert not hold._take_over(judged)  # another is about to
    assert lock.read_text() == judged.text
    os.utime(heir, (1, 1))  # it was killed just then
    assert not hold._take_over(judged)
    assert not heir.exists()
    assert hold._take_over(judged)


def test_without_hard_links_there_is_still_one_owner(card: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    hold = hold_of(card)
    with owned(card, times=FAST):
        assert not hold._take()
    assert hold._take()


def fenced_job(card: Path, change: Callable[[Path], object]) -> int | None:
    """Return the status of an owner whose lock is changed while it works; it notes the end of its work."""

    def job() -> None:
        with owned(card, times=FAST):
            work(card, seconds=0.5)

    process = start(job)
    wait_for(lambda: (card.parent / "protocol").exists())
    change(lock_of(card))
    return end(process)[0]


def test_an_owner_that_was_replaced_ends_itself(card: Path) -> None:
    other = far().model_dump_json()
    assert fenced_job(card, lambda lock: storage.write_text(lock, other)) == ownership.LOST
    assert [what for what, _ in protocol(card.parent)] == ["begin"]
    assert lock_of(card).read_text() == other


def test_an_owner_puts_a_deleted_lock_back(card: Path) -> None:
    back: list[bool] = []

    def delete(lock: Path) -> None:
        lock.unlink()
        wait_for(lock.exists)
        back.append(True)

    assert fenced_job(card, delete) == 0
    assert back == [True]
    assert sorted(path.name for path in card.parent.iterdir()) == ["protocol"]


def test_a_stopped_owner_ends_when_it_runs_again(card: Path) -> None:
    def job() -> None:
        atomic.machine = lambda: "other"  # type: ignore[assignment]
        with owned(card, times=FAST):
            note(card.parent, "begin", os.getpid())
            time.sleep(5)
            note(card.parent, "end", os.getpid())

    process = start(job)
    wait_for(lambda: (card.parent / "protocol").exists())
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    with owned(card, times=FAST):
        text = lock_of(card).read_text()
        os.kill(process.pid, signal.SIGCONT)
        assert end(process) == [ownership.LOST]
        assert lock_of(card).read_text() == text
    assert [what for what, _ in protocol(card.parent)] == ["begin"]


def test_who_waits_says_for_whom(card: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lever_pipe.runtime.ownership")
    owner = far(job="17", since="then")
    put_lock(card, owner)
    with owned(card, times=FAST):
        pass
    lines = [record.getMessage() for record in caplog.records]
    waiting = [line for line in lines if line.endswith("waiting")]
    assert (
        waiting[0]
        == f"{card.parent} is being made by another job: host n7, process 12, SLURM job 17, since then; waiting"
    )
    assert 2 <= len(waiting) <= FAST.limit_s / FAST.say_s + 1
    assert lines[-1] == f"{lock_of(card)}: its owner is gone ({owner}); taken over"


def launcher(card: Path, *, hang: bool) -> None:
    """Hand a lock to two processes, as accelerate's launcher does; each notes its number."""

    def member(rank: int) -> None:
        os.environ |= {"LOCAL_RANK": str(rank), "RANK": str(rank)}
        with ownership.adopted(times=FAST) as hold:
            assert HANDED not in os.environ
            note(card.parent, "owner" if hold else "other", os.getpid())
            time.sleep(30 if hang else 0.2)

    with owned(card, times=FAST) as hold, hold.handed_over():
        members = [start(member, rank) for rank in range(2)]
        status = 0 if end(*members) == [0, 0] else 1
        os._exit(status)


def test_a_lock_goes_to_the_first_process_of_a_launcher(card: Path) -> None:
    process = start(lambda: launcher(card, hang=False))
    wait_for(lambda: (card.parent / "protocol").exists() and len(protocol(card.parent)) == 2)
    owner = Owner.model_validate_json(lock_of(card).read_text())
    assert owner.pid == process.pid
    wait_for(lambda: lock_of(card).stat().st_mtime < time.time() + 1)  # the heartbeat is no longer ahead of time
    assert end(process) == [0]
    assert sorted(who for who, _ in protocol(card.parent)) == ["other", "owner"]
    assert not lock_of(card).exists()


def test_the_processes_of_a_launcher_end_with_it(card: Path) -> None:
    process = start(lambda: launcher(card, hang=True))
    wait_for(lambda: (card.parent / "protocol").exists() and len(protocol(card.parent)) == 2)
    process.kill()
    for _, number in protocol(card.parent):
        wait_for(lambda number=number: not process_start(int(number)))
    end(process)
    with owned(card, times=FAST._replace(limit_s=1000)) as hold:  # though the heartbeat was ahead of time
        assert hold.waited


def test_a_lock_outlives_the_start_of_a_launcher(card: Path) -> None:
    with owned(card, times=FAST) as hold:
        with hold.handed_over():
            assert os.environ[HANDED].endswith(str(lock_of(card)))
            assert lock_of(card).stat().st_mtime - time.time() > FAST.launch_s - 5
            before = lock_of(card).stat().st_mtime
            time.sleep(3 * FAST.beat_s)
            assert lock_of(card).stat().st_mtime == before
        assert HANDED not in os.environ
    assert not lock_of(card).exists()


def test_a_handed_lock_that_is_another_s_is_not_adopted(card: Path) -> None:
    put_lock(card, far())

    def job() -> None:
        os.environ |= {HANDED: f"mine:{lock_of(card)}", "RANK": "0"}
        with ownership.adopted():
            note(card.parent, "wrote", 0)

    assert end(start(job)) == [ownership.LOST]
    assert not (card.parent / "protocol").exists()


# The command line.

FILES = ("embeddings", "selector", "optimiser", "metrics", "card")
STAGE = InitialiseSelectorConfig(preset="p", selector=Selector(width=8), seed=3)


def call(folder: Path, **changes: object) -> list[str]:
    spec = json.dumps({"code": "x", "config": STAGE.model_copy(update=changes).model_dump(mode="json")})
    return ["initialise_selector", *(f"{name}={folder / name}" for name in FILES), "--spec", spec]


@contextmanager
def another_job(folder: Path) -> Iterator[None]:
    """Let another process seem to own the artefact until `main` waits for it."""
    lock = put_lock(folder / "card", this_process())  # this process lives
    judge = Hold._may_write

    def judge_once(hold: Hold, found: ownership._Lock) -> bool:
        lock.unlink(missing_ok=True)
        return judge(hold, found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Hold, "_may_write", judge_once)
        yield


@pytest.fixture
def artefact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a stage's files, made once."""
    monkeypatch.setattr(ownership, "TIMES", FAST)
    storage.write_arrays(tmp_path / "embeddings", embedding_arrays(4, 2))
    assert main(call(tmp_path)) == 0
    return tmp_path


def times_of(folder: Path) -> dict[str, int]:
    return {name: (folder / name).stat().st_mtime_ns for name in FILES}


def test_a_duplicate_leaves_what_is_whole(artefact: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lever_pipe")
    before = times_of(artefact)
    with another_job(artefact):
        assert main(call(artefact)) == 0
    assert times_of(artefact) == before
    assert "another job has made the very same artefact" in caplog.text
    assert sorted(path.name for path in artefact.iterdir()) == sorted(FILES)


def test_a_duplicate_with_another_spec_runs(artefact: Path) -> None:
    before = times_of(artefact)
    with another_job(artefact):
        assert main(call(artefact, seed=4)) == 0
    assert all(before[name] < now for name, now in times_of(artefact).items() if name != "embeddings")
    assert is_made(_parser().parse_args(call(artefact, seed=4)))
    assert not is_made(_parser().parse_args(call(artefact)))


def test_a_duplicate_runs_where_an_output_is_missing(artefact: Path) -> None:
    (artefact / "metrics").unlink()
    with another_job(artefact):
        assert main(call(artefact)) == 0
    assert (artefact / "metrics").exists()


def test_without_another_job_a_stage_runs_again(artefact: Path) -> None:
    before = times_of(artefact)
    assert main(call(artefact)) == 0
    assert times_of(artefact)["card"] > before["card"]


def test_sigterm_gives_the_lock_back(
    artefact: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lever_pipe.stages import initialise_selector as stage

    closed: list[bool] = []

    def slow(*_: object, **__: object) -> None:
        assert lock_of(artefact / "card").exists()
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)  # SLURM's step and its shell may both send it
            time.sleep(20)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            closed.append(True)

    former = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(stage, "read_table", slow)
    begin = time.monotonic()
    assert main(call(artefact)) == 128 + 15
    assert time.monotonic() - begin < 10
    assert closed == [True]
    assert not lock_of(artefact / "card").exists()
    assert "SIGTERM" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == former


def test_sigterm_ends_a_wait(artefact: Path) -> None:
    put_lock(artefact / "card", this_process())  # it never ends
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    assert main(call(artefact)) == 128 + 15
    timer.join()
    assert sorted(path.name for path in artefact.iterdir()) == sorted([*FILES, ".card.owner"])


def test_several_processes_take_the_lock_with_them(artefact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[str] = []

    def become(*_: object) -> None:
        handed.append(os.environ[HANDED])
        assert lock_of(artefact / "card").stat().st_mtime > time.time() + 10
        raise OSError("no such launcher")

    monkeypatch.setattr(os, "execv", become)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(OSError, match="no such launcher"):
        main([*call(artefact), "--processes", "2"])
    assert len(handed) == 1
    assert HANDED not in os.environ
    assert not lock_of(artefact / "card").exists()
