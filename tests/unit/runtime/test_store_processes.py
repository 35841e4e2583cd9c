"""Several processes at one store, processes that are killed, another user."""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest
from finished_work import SIZE, VERSIONS, a_manifest, a_store, key, targets, tree, work

from lever_pipe.runtime.store import Store, bytes_of

JOBS = 12
ENOUGH_BYTES = 10 * SIZE
"""Room for fewer jobs than there are, so that collectors have work."""

# A process that shares this one's imports starts within milliseconds.
fork = multiprocessing.get_context("fork")


@contextmanager
def running(*calls: Callable[[], Any]) -> Iterator[list[BaseProcess]]:
    """Run functions in separate processes; end all of them afterwards."""
    processes = [fork.Process(target=_quiet, args=(call,)) for call in calls]
    try:
        for process in processes:
            process.start()
        yield list(processes)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _quiet(call: Callable[[], Any]) -> None:
    """Leave a process by its result alone: nothing of the test's own process is flushed or torn down in it."""
    logging.disable(logging.CRITICAL)
    try:
        call()
    except BaseException:  # noqa: BLE001 - whatever it is, the test must hear of it
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def make_outputs(folder: Path) -> list[dict[str, Path]]:
    """Write the outputs of all jobs once; their trees are what a restore must give."""
    return [work(folder / str(number), number) for number in range(JOBS)]


def hammer(store: Store, folder: Path, act: str, did: Sequence[Any], number: int) -> None:
    """Write, read or collect until all have done some; a reader fails on wrong content."""
    draw = random.Random(number)
    expected = [tree(folder / "made" / str(job)) for job in range(JOBS)]
    outputs = [targets(folder / "made" / str(job)) for job in range(JOBS)]
    manifests = [a_manifest(each) for each in outputs]
    until = time.monotonic() + 1.2  # for many meetings
    while time.monotonic() < until or not all(of.value for of in did):
        job = draw.randrange(JOBS)
        if act == "write":
            did[number].value += store.put(key(job), manifests[job])
        elif act == "collect":
            did[number].value += store.trim()
        else:
            back = folder / f"back {number}"
            if store.restore(key(job), targets(back), versions=VERSIONS) is not None:
                did[number].value += 1
                assert tree(back) == expected[job], (job, tree(back).keys())


def test_writers_readers_and_collectors_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # waiting for the disk makes meetings rare
    make_outputs(tmp_path / "made")
    store = a_store(tmp_path / "store", max_bytes=ENOUGH_BYTES)
    acts = ["write"] * 3 + ["read"] * 2 + ["collect"] * 2
    did = [fork.Value("q") for _ in acts]

    def actor(number: int, act: str) -> Callable[[], None]:
        return lambda: hammer(store, tmp_path, act, did, number)

    with running(*(actor(number, act) for number, act in enumerate(acts))) as processes:
        for process in processes:
            process.join(60)
        assert [process.exitcode for process in processes] == [0] * len(acts)
    assert list(store.verify()) == []
    store.trim()
    assert sum(bytes_of(work.entry) for work in store.works()) <= ENOUGH_BYTES
    assert tree(store.folder / "staging") == {}


def churn(store: Store, folder: Path, busy: Event) -> None:
    """Put, restore and collect in a loop, and signal when the first result is stored."""
    outputs = [targets(folder / "made" / str(job)) for job in range(JOBS)]
    manifests = [a_manifest(each) for each in outputs]
    draw = random.Random(os.getpid())
    while True:
        job = draw.randrange(JOBS)
        store.put(key(job), manifests[job])
        busy.set()
        store.restore(key(job), targets(folder / "back" / str(job)), versions=VERSIONS)
        if draw.random() < 0.2:
            store.trim()


def test_kills_leave_whole_entries_and_whole_targets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    outputs = make_outputs(tmp_path / "made")
    store = a_store(tmp_path / "store", max_bytes=ENOUGH_BYTES)
    draw = random.Random(8)
    expected = [tree(tmp_path / "made" / str(job)) for job in range(JOBS)]
    (tmp_path / "back").mkdir()
    for _ in range(30):
        busy = fork.Event()
        with running(partial(churn, store, tmp_path, busy)) as (process,):
            assert busy.wait(60)  # how soon depends on the disk
            time.sleep(0.05 * draw.random())
            assert process.is_alive()  # and is killed now, wherever it is
        for job, whole in enumerate(expected):
            found = tree(tmp_path / "back" / str(job)) if (tmp_path / "back" / str(job)).exists() else {}
            for name, content in found.items():
                if not name.startswith("."):
                    assert content == whole[name], name
            if "last" in found:  # a folder is there as a whole
                assert {name for name in found if name.startswith("last")} == {n for n in whole if n.startswith("last")}
    assert list(store.verify()) == []
    store.trim()
    assert tree(store.folder / "staging") == {}  # leftovers of killed processes
    restored = 0
    for job, whole in enumerate(expected):
        back = tmp_path / "end" / str(job)
        if store.restore(key(job), targets(back), versions=VERSIONS) is not None:
            restored += 1
            assert tree(back) == whole
    assert restored > 0
    caplog.clear()
    for job, each in enumerate(outputs):
        a_store(store.folder).put(key(job), a_manifest(each))
        assert a_store(store.folder).restore(key(job), targets(tmp_path / "last" / str(job)), versions=VERSIONS)
    assert list(store.verify()) == []


def test_a_terminated_process_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    manifest = a_manifest(work(tmp_path / "made", size=30_000_000))

    def put() -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as the command line has it
        a_store(folder).put(key(0), manifest)

    with running(put) as (process,):
        deadline = time.monotonic() + 20
        while not any((folder / "staging").glob("*/*")) and time.monotonic() < deadline:
            time.sleep(0.001)
        process.terminate()
        process.join(20)
    assert tree(folder) == {"staging": None}
