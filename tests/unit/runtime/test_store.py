from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from finished_work import (
    GB,
    VERSIONS,
    a_card,
    a_store,
    blob_bytes,
    kept,
    key,
    number_of,
    place_of,
    places,
    targets,
    tree,
    weights_of,
    work,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from lever_pipe.base import atomic, contents
from lever_pipe.base.errors import StoreError
from lever_pipe.runtime.store import Store, key_of, opened

SPEC = '{"code":"c0de","config":{"beta":0.15,"seed":3}}'
HOUR = 3600


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test asks of the store does not depend on when the disk has it, and waiting takes most of the time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return a_store(tmp_path / "store")


def restored(store: Store, folder: Path, number: int = 0) -> dict[str, Any] | None:
    """Return the tree that a job's work is restored to, or None."""
    folder.mkdir(exist_ok=True)
    card = store.restore(key(number), targets(folder), versions=VERSIONS)
    return tree(folder) if card is not None else None


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    caplog.clear()
    return found


def aged(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def stated(path: Path) -> dict[str, Any]:
    """Return what a `work.json` says."""
    said: dict[str, Any] = json.loads(path.read_bytes().partition(b"\n")[2])
    return said


# Keys


def test_a_key_is_the_digest_of_stage_spec_and_inputs() -> None:
    inputs = {"cells[1]": "bb", "cells[0]": "aa"}
    text = (
        '{"inputs":{"cells[0]":"aa","cells[1]":"bb"},'
        '"spec":{"code":"c0de","config":{"beta":0.15,"seed":3}},"stage":"score_answers"}'
    )
    assert key_of("score_answers", SPEC, inputs) == hashlib.sha256(text.encode()).hexdigest()
    other_text = '{ "config": {"seed": 3, "beta": 0.15},\n "code": "c0de" }'
    assert key_of("score_answers", other_text, dict(reversed(inputs.items()))) == key_of("score_answers", SPEC, inputs)


def test_each_part_of_a_key_counts() -> None:
    inputs = {"start": "aa", "cells[0]": "bb", "cells[1]": "cc"}
    variants = [
        ("a", SPEC, inputs),
        ("b", SPEC, inputs),
        ("a", SPEC.replace("0.15", "0.12"), inputs),
        ("a", SPEC.replace("c0de", "c0df"), inputs),
        ("a", '{"code":"c0de","config":{"beta":3,"seed":0.15}}', inputs),  # two values that swap places
        ("a", SPEC, {**inputs, "start": "dd"}),
        ("a", SPEC, {"start": "aa", "cells[0]": "cc", "cells[1]": "bb"}),
        ("a", SPEC, {"begin": "aa", "cells[0]": "bb", "cells[1]": "cc"}),
        ("a", SPEC, {"start": "aa", "cells[0]": "bb"}),
    ]
    assert len({key_of(*variant) for variant in variants}) == len(variants)


# Put and restore


def test_making_a_store_or_missing_in_it_touches_nothing(tmp_path: Path) -> None:
    store = opened({"folder": str(tmp_path / "store"), "max_gb": 0.5})
    assert (store.folder, store.max_bytes) == (tmp_path / "store", GB // 2)
    assert restored(store, tmp_path / "results") is None
    assert list(store.verify()) == []
    assert (store.stats().entries, store.stats().bytes, store.trim().bytes) == (0, 0, 0)
    assert not store.folder.exists()
    assert tree(tmp_path / "results") == {}


def test_work_comes_back_with_its_card(store: Store, tmp_path: Path) -> None:
    outputs = work(tmp_path / "made")
    card = a_card(outputs)
    assert store.put(key(0), card, outputs)
    before = tree(tmp_path / "made")
    shutil.rmtree(tmp_path / "made")
    assert store.restore(key(0), targets(tmp_path / "a" / "b"), versions=VERSIONS) == card
    assert tree(tmp_path / "a" / "b") == before
    assert store.restore(key(1), targets(tmp_path / "c"), versions=VERSIONS) is None
    assert not (tmp_path / "c").exists()
    assert tree(store.folder / "staging") == {}


def test_the_layout_is_the_documented_one(store: Store, tmp_path: Path) -> None:
    outputs = kept(store, tmp_path / "made")
    identity = hashlib.sha256(b'{"python":"3.11.9","torch":"2.13.0"}').hexdigest()[:16]
    place = store.folder / "work" / key(0)[:2] / f"{key(0)}.{identity}"
    assert places(store) == [place]
    assert (store.folder / "VERSION").read_text() == "2\n"
    found = tree(place)
    assert {path for path, content in found.items() if content is not None} == {
        "work.json", "0/empty", "0/inner/number.txt", "0/shared.txt", "1",
    }  # fmt: skip
    assert found["1"] == outputs["weights"].read_bytes()
    said = stated(place / "work.json")
    assert (said["key"], said["size"]) == (key(0), 3017)
    assert said["outputs"]["weights"] == hashlib.sha256(blob_bytes(0, 3000)).hexdigest()
    assert said["outputs"]["last"]["inner/number.txt"] == hashlib.sha256(b"0").hexdigest()


def test_work_is_stored_once(store: Store, tmp_path: Path) -> None:
    outputs = kept(store, tmp_path / "a", 0)
    assert not store.put(key(0), a_card(outputs), outputs)
    kept(store, tmp_path / "b", 1)
    stats = store.stats()
    assert (stats.entries, stats.files, stats.bytes) == (2, 8, 2 * 3017)


def test_a_store_keeps_nothing_larger_than_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    outputs = work(tmp_path / "a")
    size = 3000 + 1 + len("the same for all")
    assert not a_store(tmp_path / "small", max_bytes=size - 1).put(key(0), a_card(outputs), outputs)
    assert not (tmp_path / "small").exists()
    assert a_store(tmp_path / "large", max_bytes=size).put(key(0), a_card(outputs), outputs)
    assert warnings(caplog) == []


names = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=255).filter(
    lambda name: not name.startswith(".") and len(name.encode()) <= 255
)
trees = st.recursive(
    st.binary(max_size=20), lambda inner: st.dictionaries(names, inner, max_size=4), max_leaves=6
)  # bytes are files, dictionaries folders


def grow(path: Path, content: Any) -> None:
    if isinstance(content, bytes):
        path.write_bytes(content)
        return
    path.mkdir()
    for name, inner in content.items():
        grow(path / name, inner)


def files_in(path: Path) -> dict[str, bytes] | bytes:
    if path.is_file():
        return path.read_bytes()
    return {str(found.relative_to(path)): found.read_bytes() for found in contents.files_below(path)}


@settings(max_examples=60)
@given(made=st.dictionaries(names, trees, min_size=1, max_size=3))
def test_any_tree_comes_back(tmp_path_factory: pytest.TempPathFactory, made: dict[str, Any]) -> None:
    folder = tmp_path_factory.mktemp("trees")
    store = a_store(folder / "store")
    (folder / "made").mkdir()
    for name, content in made.items():
        grow(folder / "made" / name, content)
    outputs = {f"name {name}": folder / "made" / name for name in made}
    card = a_card(outputs)
    assert store.put(key(0), card, outputs)
    back = {name: folder / "back" / path.name for name, path in outputs.items()}
    assert store.restore(key(0), back, versions=VERSIONS) == card
    for name, path in outputs.items():
        assert files_in(back[name]) == files_in(path)
        assert contents.digest(back[name]) == card.outputs[name]
        assert back[name].is_dir() == path.is_dir()
    assert len(list((folder / "back").iterdir())) == len(made)  # and nothing temporary
    assert list(store.verify()) == []
    shutil.rmtree(folder)


def test_notes_of_tools_are_no_content(store: Store, tmp_path: Path) -> None:
    outputs = work(tmp_path / "a")
    (outputs["last"] / ".snakemake_timestamp").write_text("x")
    (outputs["last"] / ".cache").mkdir()
    (outputs["last"] / ".cache" / "link").symlink_to("/etc/passwd")
    assert store.put(key(0), a_card(outputs), outputs)
    found = restored(store, tmp_path / "b")
    assert found is not None
    assert not any(".snakemake" in name or ".cache" in name for name in found)


SPOILS: dict[str, Callable[[dict[str, Path]], object]] = {
    "changed": lambda outputs: outputs["weights"].write_bytes(b"other"),
    "a file more": lambda outputs: (outputs["last"] / "more").write_bytes(b"other"),
    "gone": lambda outputs: outputs["weights"].unlink(),
    "unknown to the card": lambda outputs: outputs.update(more=outputs["weights"]),
}


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
def test_what_differs_from_its_card_is_not_kept(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[dict[str, Path]], None]
) -> None:
    outputs = work(tmp_path / "a")
    card = a_card(outputs)
    spoil(outputs)
    assert not store.put(key(0), card, outputs)
    (said,) = warnings(caplog)
    assert str(store.folder) in said
    assert "train_rce_epoch" in said
    assert places(store) == []
    assert tree(store.folder).get("staging", None) is None
    assert restored(store, tmp_path / "b") is None


def test_a_kept_file_is_the_result_itself_and_of_one_result_alone(store: Store, tmp_path: Path) -> None:
    outputs = kept(store, tmp_path / "a")
    assert weights_of(store).samefile(outputs["weights"])
    back = restored(store, tmp_path / "b")
    assert back is not None
    assert back["weights.bin"] == blob_bytes(0, 3000)
    assert not weights_of(store).samefile(tmp_path / "b" / "weights.bin")  # another folder's result stays its own
    outputs["weights"].unlink()
    restored(store, tmp_path / "a")
    assert weights_of(store).samefile(outputs["weights"])


def test_an_edit_of_a_result_is_never_given_out(store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is edited in place is the kept file, too, where that is a second name of it."""
    outputs = kept(store, tmp_path / "a")
    outputs["weights"].write_bytes(b"edited".ljust(3000))
    assert restored(store, tmp_path / "b") is None
    assert "another sha256" in warnings(caplog)[0]
    assert outputs["weights"].read_bytes().startswith(b"edited")
    assert (tree(tmp_path / "b"), places(store)) == ({}, [])


@pytest.mark.parametrize("clones", [False, True])
def test_without_links_work_is_copied(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clones: bool
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "another file system")

    def clone(target: int, request: int, source: int) -> None:
        assert request == 0x40049409
        os.pwrite(target, os.pread(source, 10**6, 0), 0)

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    monkeypatch.setattr(fcntl, "ioctl", clone if clones else refuse)
    outputs = kept(store, tmp_path / "a")
    outputs["weights"].write_bytes(b"edited")
    back = restored(store, tmp_path / "b")
    assert back is not None
    assert back["weights.bin"] == blob_bytes(0, 3000)
    with (tmp_path / "b" / "weights.bin").open("r+b") as handle:
        handle.write(b"edited")
    assert list(store.verify()) == []
    assert restored(store, tmp_path / "c") == back


def test_what_is_in_the_way_is_replaced_as_a_whole(store: Store, tmp_path: Path) -> None:
    made = kept(store, tmp_path / "made")
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
        assert restored(store, folder) == tree(made["last"].parent)
    assert tree(outside) == {"precious": b"stays"}


def test_versions_must_agree_where_both_name_a_package(store: Store, tmp_path: Path) -> None:
    kept(store, tmp_path / "a")
    for versions, hit in [
        ({"python": "3.11.9"}, True),
        ({"python": "3.11.9", "numpy": "2.0"}, True),
        ({}, True),
        ({"python": "3.11.9", "torch": "2.14.0"}, False),
        ({"python": "3.11.9", "numerics": "fastest"}, True),  # work that tells no numeric path is of any
        ({"python": "3.11.8", "torch": "2.13.0"}, True),  # 3.11, which counts, stands in every fingerprint
    ]:
        assert (store.restore(key(0), targets(tmp_path / "b"), versions=versions) is not None) == hit, versions


def test_entries_of_one_key_are_told_apart_by_versions(store: Store, tmp_path: Path) -> None:
    cards = {}
    for number, torch in enumerate(("2.13.0", "2.14.0")):
        outputs = work(tmp_path / torch, number)
        cards[torch] = a_card(outputs, versions={"torch": torch})
        assert store.put(key(0), cards[torch], outputs)
    for torch in cards:
        back = targets(tmp_path / f"back {torch}")
        assert store.restore(key(0), back, versions={"torch": torch}) == cards[torch]
        assert tree(tmp_path / f"back {torch}") == tree(tmp_path / torch)


# Damage


def _flip(path: Path, at: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)


DAMAGES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "a bit": ("1", lambda path: _flip(path, 1500, 7), "another sha256"),
    "zeros": ("1", lambda path: path.write_bytes(bytes(3000)), "another sha256"),
    "truncated": ("1", lambda path: os.truncate(path, 2999), "3016 bytes"),
    "extended": ("1", lambda path: path.write_bytes(path.read_bytes() + b"\0"), "3018 bytes"),
    "missing": ("1", lambda path: path.unlink(), "none"),
    "a file more": ("2", lambda path: path.touch(), "one file more"),
    "an empty statement": ("work.json", lambda path: os.truncate(path, 0), "other content"),
    "another statement": ("work.json", lambda path: path.write_bytes(b"{}"), "other content"),
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
    outputs, place = kept(store, tmp_path / "a"), places(store)[0]
    damage(place / name)
    work(tmp_path / "b", 7)
    before = tree(tmp_path / "b")
    assert restored(store, tmp_path / "b") is None
    (said,) = warnings(caplog)
    assert str(place) in said
    assert f"; found {found}" in said
    assert (tree(tmp_path / "b"), places(store)) == (before, [])
    assert restored(store, tmp_path / "b") is None  # a miss as any other
    assert warnings(caplog) == []
    assert store.put(key(0), a_card(outputs), outputs)
    assert restored(store, tmp_path / "b") == tree(tmp_path / "a")
    assert list(store.verify()) == []


def test_damage_is_no_obstacle_to_sound_work(store: Store, tmp_path: Path) -> None:
    """A forced job makes the very same bytes; what lies under their names has the right size, and is something else."""
    outputs = kept(store, tmp_path / "a")
    for path in (place_of(store, 0) / "work.json", weights_of(store)):
        _flip(path, 9)
        assert store.put(key(0), a_card(outputs), outputs)
        assert restored(store, tmp_path / "b") == tree(tmp_path / "a")
        assert list(store.verify()) == []
        assert not store.put(key(0), a_card(outputs), outputs)


def test_other_work_of_the_same_key_is_replaced(store: Store, tmp_path: Path) -> None:
    kept(store, tmp_path / "a")
    other = work(tmp_path / "b", 7)
    assert store.put(key(0), a_card(other), other)
    assert restored(store, tmp_path / "c") == tree(tmp_path / "b")
    assert (len(places(store)), tree(store.folder / "staging")) == (1, {})


def test_another_format_is_refused_and_stays(store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    outputs = kept(store, tmp_path / "a")
    stated_format = store.folder / "VERSION"
    for text, found in (("3\n", "'3'"), ("", "''"), (None, "no such file")):
        stated_format.unlink() if text is None else stated_format.write_text(text)
        before = tree(store.folder)
        for call in (lambda: restored(store, tmp_path / "b"), store.trim, store.stats, lambda: [*store.verify()]):
            with pytest.raises(StoreError) as refusal:
                call()
            assert refusal.value.found == found
            assert "delete this one" in str(refusal.value)
        assert not store.put(key(1), a_card(outputs), outputs)
        assert found in warnings(caplog)[0]
        assert tree(store.folder) == before


def test_what_is_not_named_as_finished_work_is_somebodys_own(tmp_path: Path) -> None:
    store = a_store(tmp_path / "cache", max_bytes=0)
    own = [f"work/thesis/chapters/{name}" for name in ("one", "two")] + ["work/ab/notes/three"]
    for name in own:
        (store.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (store.folder / name).write_text("dear")
    (store.folder / "VERSION").write_text("2\n")
    assert ([*store.verify(remove=True)], store.trim().entries, store.stats().entries) == ([], 0, 0)
    assert all((store.folder / name).read_text() == "dear" for name in own)


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
    assert store.put(key(0), a_card(outputs), outputs)
    assert named == places(store)
    assert state(named[0].parent) in synced
    named.clear()
    restored(store, tmp_path / "b")
    assert sorted(named) == sorted(targets(tmp_path / "b").values())
    assert state(tmp_path / "b") in synced


# Room


def stocked(tmp_path: Path, count: int) -> tuple[Store, list[Path]]:
    """Return a store of jobs, job 0 used last, with their folders; each needs 3017 bytes."""
    store = a_store(tmp_path / "store")
    found = []
    for number in range(count):
        kept(store, tmp_path / str(number), number)
        found.append(place_of(store, number))
        aged(found[-1], 100 * (1 + number))
    return store, found


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    store, found = stocked(tmp_path, 4)
    assert restored(store, tmp_path / "hit", 3) is not None  # now the most recently used
    store.max_bytes = 3 * 3017 - 1
    trimmed = store.trim()
    assert places(store) == sorted((found[0], found[3]))
    assert (trimmed.entries, trimmed.bytes) == (2, 2 * 3017)
    assert (store.stats().entries, store.stats().bytes) == (2, 2 * 3017)
    assert list(store.verify()) == []
    assert restored(store, tmp_path / "left", 0) == tree(tmp_path / "0")
    assert restored(store, tmp_path / "gone", 1) is None
    assert store.trim() == trimmed._replace(entries=0, bytes=0)
    store.max_bytes = 2 * 3017
    assert store.trim().entries == 0
    store.max_bytes -= 1
    assert store.trim().entries == 1
    store.max_bytes = 0
    store.trim()
    assert (places(store), tree(store.folder / "staging")) == ([], {})


def test_leftovers_go_and_what_is_at_work_stays(tmp_path: Path) -> None:
    store, _ = stocked(tmp_path, 1)
    for name, age_s in ((".elsewhere.7.01234567.tmp", 60), (".elsewhere.8.01234567.tmp", 2 * atomic.ABANDONED_S)):
        left = store.folder / "staging" / name
        left.mkdir()
        (left / "part").write_bytes(b"part")
        aged(left, age_s)
    with atomic.folder_in(store.folder / "staging") as working:
        aged(working, 2 * atomic.ABANDONED_S)
        assert store.trim().temporary == 1
        left_over = sorted(path.name for path in (store.folder / "staging").iterdir())
        assert left_over == sorted([working.name, ".elsewhere.7.01234567.tmp"])
    assert restored(store, tmp_path / "b") == tree(tmp_path / "0")


def test_answers_beside_the_store_stay(tmp_path: Path) -> None:
    store, _ = stocked(tmp_path, 1)
    ledger = store.folder / "ledger" / "ab" / "host-1.jsonl"
    ledger.parent.mkdir(parents=True)
    ledger.write_bytes(b"x" * 123)
    aged(ledger, 5 * HOUR)
    assert (store.stats().ledger_bytes, store.stats().bytes) == (123, 3017)
    store.max_bytes = 0
    store.trim()
    assert list(store.verify(remove=True)) == []
    assert ledger.exists()


# Check


def test_verify_names_everything_that_is_damaged(tmp_path: Path) -> None:
    store, found = stocked(tmp_path, 6)
    assert list(store.verify()) == []
    _flip(found[0] / "work.json", 200)
    _flip(weights_of(store, 1), 9)
    number_of(store, 2).unlink()
    os.truncate(weights_of(store, 3), 0)
    spoiled = {
        found[0] / "work.json": "other content than its digest says",
        weights_of(store, 1): "the sha256 ",
        number_of(store, 2): "none",
        found[3]: "17 bytes instead of 3017",
    }
    before = tree(store.folder)
    damages = list(map(str, store.verify()))
    assert tree(store.folder) == before
    assert {damage.split(": expected")[0] for damage in damages} == {str(path) for path in spoiled}
    for damage in damages:
        assert "\n" not in damage
        assert f"; found {spoiled[Path(damage.split(': expected')[0])]}" in damage
    assert [str(damage) for damage in store.verify(remove=True)] == damages
    assert list(store.verify()) == []
    assert places(store) == sorted(found[4:])
    assert restored(store, tmp_path / "b", 4) == tree(tmp_path / "4")


# Faults of the machine


def failing(monkeypatch: pytest.MonkeyPatch, at: int) -> list[str]:
    """Let all operations that need room fail from the at-th on; return what was asked for."""
    asked: list[str] = []

    def guard(owner: Any, name: str) -> None:
        do = getattr(owner, name)

        def guarded(*arguments: Any, **options: Any) -> Any:
            if name == "open" and "r" in (arguments[1:] or ("r",))[0]:
                return do(*arguments, **options)
            asked.append(name)
            if len(asked) > at:
                raise OSError(errno.ENOSPC, "No space left on device")
            return do(*arguments, **options)

        monkeypatch.setattr(owner, name, guarded)

    for owner, name in ((os, "fsync"), (Path, "rename"), (Path, "replace"), (Path, "mkdir"), (Path, "open")):
        guard(owner, name)
    return asked


def test_a_disk_that_fills_at_any_moment_leaves_no_half_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    outputs = work(tmp_path / "a")
    card, stored, steps = a_card(outputs), False, 0
    while not stored:
        store = a_store(tmp_path / f"store {steps}")
        with monkeypatch.context() as patch:
            asked = failing(patch, steps)
            stored = store.put(key(0), card, outputs)
            whole = len(asked) <= steps
        said = warnings(caplog)
        assert stored == (said == [])
        if not stored:
            assert "No space left" in said[0] or "expected to find" in said[0]
            assert not whole
        assert tree(store.folder).keys() & {"staging"} == set() or tree(store.folder / "staging") == {}
        assert list(store.verify()) == []
        assert (restored(store, tmp_path / "b") is not None) == bool(places(store))
        shutil.rmtree(tmp_path / "b", ignore_errors=True)
        steps += 1
    assert steps > 20


def test_targets_on_a_disk_that_fills_stay_as_they_were(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept(store, tmp_path / "a")
    new, old = tree(tmp_path / "a"), None
    for steps in range(100):
        folder = tmp_path / f"b {steps}"
        work(folder, 7)
        old = tree(folder)
        with monkeypatch.context() as patch:
            asked = failing(patch, steps)
            done = store.restore(key(0), targets(folder), versions=VERSIONS)
        found = tree(folder)
        assert places(store)  # a full results disk is no fault of the store
        if done is not None:  # at the latest when nothing failed; a file system may not be able to flush a folder
            assert found == new
            if len(asked) <= steps:
                break
            continue
        assert any("No space left" in text for text in warnings(caplog))
        for name, whole in found.items():
            assert whole in (old.get(name), new.get(name)), name
        if asked.count("rename") == 0:
            assert found == old
    else:
        pytest.fail("never done")
    assert steps > 10


def test_leftovers_of_killed_restores_go_with_the_next(store: Store, tmp_path: Path) -> None:
    kept(store, tmp_path / "a")
    old, young = (tmp_path / "b" / f".elsewhere.{number}.01234567.tmp" for number in (1, 2))
    for path in (old, young):
        path.mkdir(parents=True)
    aged(old, 2 * atomic.ABANDONED_S)
    restored(store, tmp_path / "b")
    assert (old.exists(), young.exists()) == (False, True)
