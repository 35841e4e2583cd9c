from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from finished_work import (
    SIZE,
    VERSIONS,
    a_manifest,
    a_store,
    blob_bytes,
    entries,
    entry_of,
    key,
    stored_work,
    targets,
    tree,
    weights_of,
    work,
)

from lever_pipe.base import atomic
from lever_pipe.runtime.store import Store, bytes_of, key_of

SPEC = '{"code":"c0de","config":{"beta":0.15,"seed":3}}'


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests do not depend on flushes to disk, and waiting for them takes most of the time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return a_store(tmp_path / "store")


def restored(store: Store, folder: Path, number: int = 0) -> dict[str, Any] | None:
    """Return the tree that a job's work is restored to, or None."""
    folder.mkdir(exist_ok=True)
    manifest = store.restore(key(number), targets(folder), versions=VERSIONS)
    return tree(folder) if manifest is not None else None


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    caplog.clear()
    return found


def aged(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_a_key_is_the_digest_of_stage_spec_and_inputs_each_of_which_counts() -> None:
    inputs = {"cells[1]": "bb", "cells[0]": "aa"}
    text = (
        '{"inputs":{"cells[0]":"aa","cells[1]":"bb"},'
        '"spec":{"code":"c0de","config":{"beta":0.15,"seed":3}},"stage":"a"}'
    )
    assert key_of("a", SPEC, inputs) == hashlib.sha256(text.encode()).hexdigest()
    assert key_of("a", '{ "config": {"seed": 3, "beta": 0.15},\n "code": "c0de" }', inputs) == key_of("a", SPEC, inputs)
    variants = [
        ("a", SPEC, inputs),
        ("b", SPEC, inputs),
        ("a", SPEC.replace("c0de", "c0df"), inputs),
        ("a", '{"code":"c0de","config":{"beta":3,"seed":0.15}}', inputs),  # two values that swap places
        ("a", SPEC, {"cells[0]": "bb", "cells[1]": "aa"}),
        ("a", SPEC, {"cells[0]": "aa"}),
    ]
    assert len({key_of(*variant) for variant in variants}) == len(variants)


def test_work_comes_back_with_its_manifest_and_is_stored_once(store: Store, tmp_path: Path) -> None:
    outputs = work(tmp_path / "made")
    manifest = a_manifest(outputs)
    assert store.put(key(0), manifest)
    assert not store.put(key(0), manifest)
    identity = hashlib.sha256(b'{"python":"3.11.9","torch":"2.13.0"}').hexdigest()[:16]
    assert entries(store) == [store.folder / "work" / key(0)[:2] / f"{key(0)}.{identity}"]
    assert sum(map(bytes_of, outputs.values())) == SIZE
    before = tree(tmp_path / "made")
    shutil.rmtree(tmp_path / "made")
    assert store.restore(key(0), targets(tmp_path / "a" / "b"), versions=VERSIONS) == manifest
    assert tree(tmp_path / "a" / "b") == before
    assert store.restore(key(1), targets(tmp_path / "c"), versions=VERSIONS) is None
    assert not (tmp_path / "c").exists()
    assert tree(store.folder / "staging") == {}


def test_notes_of_tools_are_no_content(store: Store, tmp_path: Path) -> None:
    outputs = work(tmp_path / "a")
    before = tree(tmp_path / "a")
    (outputs["last"] / ".snakemake_timestamp").write_text("x")
    (outputs["last"] / ".cache").mkdir()
    (outputs["last"] / ".cache" / "link").symlink_to("/etc/passwd")
    assert store.put(key(0), a_manifest(outputs))
    assert restored(store, tmp_path / "b") == before


SPOILS: dict[str, Callable[[dict[str, Path]], object]] = {
    "changed": lambda outputs: outputs["weights"].write_bytes(b"other"),
    "a file more": lambda outputs: (outputs["last"] / "more").write_bytes(b"other"),
    "gone": lambda outputs: outputs["weights"].unlink(),
}


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
def test_what_differs_from_its_manifest_is_not_kept(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[dict[str, Path]], None]
) -> None:
    outputs = work(tmp_path / "a")
    manifest = a_manifest(outputs)
    spoil(outputs)
    assert not store.put(key(0), manifest)
    (text,) = warnings(caplog)
    assert f"{store.folder}: the outputs of train_rce_epoch are not stored" in text
    assert entries(store) == []
    assert tree(store.folder).get("staging") is None


def test_a_kept_file_is_the_result_itself_and_of_one_result_alone(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outputs = stored_work(store, tmp_path / "a")
    assert weights_of(store).samefile(outputs["weights"])
    assert restored(store, tmp_path / "b") == tree(tmp_path / "a")
    assert not weights_of(store).samefile(tmp_path / "b" / "weights.bin")  # another folder's result stays its own
    outputs["weights"].unlink()
    restored(store, tmp_path / "a")
    assert weights_of(store).samefile(outputs["weights"])
    outputs["weights"].write_bytes(b"edited".ljust(3000))  # also edits the stored file, which is never restored
    assert restored(store, tmp_path / "c") is None
    assert "other content" in warnings(caplog)[0]
    assert (tree(tmp_path / "c"), entries(store)) == ({}, [])


def test_without_links_work_is_copied(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    outputs = stored_work(store, tmp_path / "a")
    outputs["weights"].write_bytes(b"edited")
    back = restored(store, tmp_path / "b")
    assert back is not None
    assert back["weights.bin"] == blob_bytes(0, 3000)
    (tmp_path / "b" / "weights.bin").write_bytes(b"edited")
    assert list(store.verify()) == []
    assert restored(store, tmp_path / "c") == back


def test_what_is_in_the_way_is_replaced_as_a_whole(store: Store, tmp_path: Path) -> None:
    outputs = stored_work(store, tmp_path / "made")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("stays")
    for number, (weights, last) in enumerate([("file", "folder"), ("link", "link"), ("folder", "file")]):
        folder = tmp_path / str(number)
        folder.mkdir()
        for kind, path in ((weights, folder / "weights.bin"), (last, folder / "last")):
            if kind == "file":
                path.write_text("old")
            elif kind == "link":
                path.symlink_to(outside)
            else:
                (path / "old").mkdir(parents=True)
        assert restored(store, folder) == tree(outputs["last"].parent)
    assert tree(outside) == {"precious": b"stays"}


@pytest.mark.parametrize(
    ("versions", "hit"),
    [
        ({"python": "3.11.9", "numpy": "2.0"}, True),
        ({}, True),
        ({"python": "3.11.9", "torch": "2.14.0"}, False),
        ({"python": "3.11.8", "torch": "2.13.0"}, True),  # 3.11, the part that counts, is in every fingerprint
    ],
)
def test_versions_must_agree_where_both_name_a_package(
    store: Store, tmp_path: Path, versions: dict[str, str], hit: bool
) -> None:
    stored_work(store, tmp_path / "a")
    stored_work(store, tmp_path / "b", versions={"torch": "2.12.0"})  # a second version
    assert len(entries(store)) == 2
    assert (store.restore(key(0), targets(tmp_path / "c"), versions=versions) is not None) == hit
    assert (store.find(key(0), targets(tmp_path), versions=versions) is not None) == hit
    assert store.find(key(0), {"weights"}, versions=versions) is None


def _flip(path: Path, at: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)


DAMAGES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "a bit": ("1/weights.bin", lambda path: _flip(path, 1500, 7), "other content"),
    "truncated": ("1/weights.bin", lambda path: os.truncate(path, 2999), "other content"),
    "missing": ("1/weights.bin", lambda path: path.unlink(), "none"),
    "a file of a folder missing": ("0/last/empty", lambda path: path.unlink(), "other content"),
    "an empty manifest": ("work.json", lambda path: os.truncate(path, 0), "other content than its digest says"),
    "another manifest": ("work.json", lambda path: _flip(path, 200), "other content than its digest says"),
    "another version": (
        "work.json",
        lambda path: path.write_bytes(hashlib.sha256(b"{}").hexdigest().encode() + b"\n{}"),
        "a manifest of another version",
    ),
}


@pytest.mark.parametrize(("name", "damage", "found"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_work_is_named_and_never_used(
    store: Store,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    name: str,
    damage: Callable[[Path], object],
    found: str,
) -> None:
    outputs, entry = stored_work(store, tmp_path / "a"), entry_of(store)
    manifest = a_manifest(outputs)
    sound = tree(tmp_path / "a")
    shutil.copyfile(twin := entry / name, tmp_path / "twin")
    (tmp_path / "twin").replace(twin)  # a separate file: the result stays
    damage(twin)
    work(tmp_path / "b", 7)
    before = tree(tmp_path / "b")
    (verified,) = store.verify()
    assert restored(store, tmp_path / "b") is None
    (text,) = warnings(caplog)
    assert text == str(verified)
    assert str(entry) in text
    assert f"; found {found}" in text
    assert (tree(tmp_path / "b"), entries(store)) == (before, [])
    assert restored(store, tmp_path / "b") is None  # a miss as any other
    assert warnings(caplog) == []
    assert store.put(key(0), manifest)
    assert restored(store, tmp_path / "b") == sound
    assert list(store.verify()) == []


def test_what_is_not_named_as_finished_work_is_somebodys_own(tmp_path: Path) -> None:
    store = a_store(tmp_path / "cache", max_bytes=0)
    own = [store.folder / name for name in ("work/thesis/one", "work/ab/notes/three", "ledger/ab/host-1.jsonl")]
    for path in own:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("dear")
    assert ([*store.verify(remove=True)], store.trim()) == ([], 0)
    assert all(path.read_text() == "dear" for path in own)


def test_what_gets_a_name_is_on_disk(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[tuple[int, int]] = set()
    place, named = atomic.place, []

    def state(path: Path) -> tuple[int, int]:
        found = path.stat()
        return found.st_ino, -1 if path.is_dir() else found.st_size

    def sync(descriptor: int) -> None:
        synced.add(state(Path(f"/proc/self/fd/{descriptor}")))

    def placed(temporary: Path, target: Path) -> None:
        files = [path for path in (temporary, *temporary.rglob("*")) if path.is_file()]
        folders = [path for path in (temporary, *temporary.rglob("*")) if path.is_dir()]
        assert all(state(path) in synced for path in files)
        own = {state(path) for path in folders}
        place(temporary, target)
        assert own <= synced
        named.append(target)

    outputs = work(tmp_path / "a")
    synced |= {state(path) for path in (tmp_path / "a").rglob("*")}  # as a stage writes its results
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(atomic, "place", placed)
    assert store.put(key(0), a_manifest(outputs))
    assert named == entries(store)
    assert state(named[0].parent) in synced
    named.clear()
    restored(store, tmp_path / "b")
    assert sorted(named) == sorted(targets(tmp_path / "b").values())
    assert state(tmp_path / "b") in synced


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    store = a_store(tmp_path / "store")
    for number in range(4):
        stored_work(store, tmp_path / str(number), number)
        aged(entry_of(store, number), 100 * (1 + number))  # job 0 used last
    of_each = bytes_of(entry_of(store))  # the manifest, too
    assert restored(store, tmp_path / "hit", 3) is not None  # now the most recently used
    for limit, gone, left in ((3 * of_each - 1, 2, {0, 3}), (2 * of_each, 0, {0, 3}), (of_each, 1, {3}), (0, 1, set())):
        store.max_bytes = limit
        assert store.trim() == gone
        assert entries(store) == sorted(entry_of(store, number) for number in left)
        assert list(store.verify()) == []
    assert tree(store.folder / "staging") == {}


def test_a_trim_removes_what_cannot_be_read_and_what_killed_processes_left(tmp_path: Path) -> None:
    store = a_store(tmp_path / "store")
    for number in range(2):
        stored_work(store, tmp_path / str(number), number)
    (entry_of(store, 1) / "work.json").write_bytes(b"")
    for name, age_s in ((".elsewhere.7.01234567.tmp", 60), (".elsewhere.8.01234567.tmp", 2 * atomic.ABANDONED_S)):
        left = store.folder / "staging" / name
        left.mkdir()
        (left / "part").write_bytes(b"part")
        aged(left, age_s)
    with atomic.folder_in(store.folder / "staging") as working:
        aged(working, 2 * atomic.ABANDONED_S)
        assert store.trim() == 1
        left_over = {path.name for path in (store.folder / "staging").iterdir()}
        assert left_over == {working.name, ".elsewhere.7.01234567.tmp"}
    assert entries(store) == [entry_of(store, 0)]


def failing(monkeypatch: pytest.MonkeyPatch, at: int) -> list[str]:
    """Make all allocations fail from the at-th on; return the requests."""
    requests: list[str] = []

    def guard(owner: Any, name: str) -> None:
        do = getattr(owner, name)

        def guarded(*arguments: Any, **options: Any) -> Any:
            if name == "open" and "r" in (arguments[1:] or ("r",))[0]:
                return do(*arguments, **options)
            requests.append(name)
            if len(requests) > at:
                raise OSError(errno.ENOSPC, "No space left on device")
            return do(*arguments, **options)

        monkeypatch.setattr(owner, name, guarded)

    for owner, name in ((os, "fsync"), (Path, "rename"), (Path, "replace"), (Path, "mkdir"), (Path, "open")):
        guard(owner, name)
    return requests


def test_a_disk_that_fills_at_any_moment_leaves_no_half_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    manifest, stored, steps = a_manifest(work(tmp_path / "a")), False, 0
    while not stored:
        store = a_store(tmp_path / f"store {steps}")
        with monkeypatch.context() as patch:
            requests = failing(patch, steps)
            stored = store.put(key(0), manifest)
            whole = len(requests) <= steps
        text = warnings(caplog)
        assert stored == (text == [])
        assert stored or ("No space left" in text[0] and not whole)
        assert tree(store.folder / "staging") == {}
        assert list(store.verify()) == []
        assert (restored(store, tmp_path / "b") is not None) == bool(entries(store))
        shutil.rmtree(tmp_path / "b", ignore_errors=True)
        steps += 1
    assert steps > 10


def test_targets_on_a_disk_that_fills_stay_as_they_were(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stored_work(store, tmp_path / "a")
    new, old = tree(tmp_path / "a"), None
    for steps in range(100):
        folder = tmp_path / f"b {steps}"
        work(folder, 7)
        old = tree(folder)
        with monkeypatch.context() as patch:
            requests = failing(patch, steps)
            done = store.restore(key(0), targets(folder), versions=VERSIONS)
        found = tree(folder)
        assert entries(store)  # a full results disk is no problem of the store
        if done is not None:  # at the latest when nothing failed; a file system may not be able to flush a folder
            assert found == new
            if len(requests) <= steps:
                break
            continue
        assert any("No space left" in text for text in warnings(caplog))
        for name, whole in found.items():
            assert whole in (old.get(name), new.get(name)), name
        if requests.count("rename") == 0:
            assert found == old
    else:
        pytest.fail("never done")
    assert steps > 10
