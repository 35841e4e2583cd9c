"""Run by `test_disks.py` in a mount namespace of its own: writes on disks that are full or may not be written to.

Prints one JSON object: scenario -> what was found.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from builders import embedding_arrays, example
from safetensors.torch import save_file

from lever_pipe.__main__ import main
from lever_pipe.base import os_faults, storage
from lever_pipe.base.atomic import write_folder
from lever_pipe.base.checkpoints import save_tensors
from lever_pipe.experiment.config import Selector
from lever_pipe.experiment.stage_configs import InitialiseSelectorConfig
from lever_pipe.lvlms.asking.ledger import Ledger

FILES = ("selector", "optimiser", "metrics", "card")
LARGE = 2 << 20  # bytes, twice the disk
NUMBERS = np.random.default_rng(0).standard_normal(LARGE // 8)
Found = dict[str, Any]


def mount(folder: Path, *options: str) -> Path:
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(("size=1m", *options)), "none", str(folder)], check=True)
    return folder


def fill(folder: Path, name: str = "ballast") -> Path:
    """Leave not one block; return the file that takes the room."""
    ballast = folder / name
    with ballast.open("wb", buffering=0) as handle:
        try:
            while handle.write(bytes(4096)):
                pass
        except OSError:
            return ballast
    raise AssertionError("the disk has no end")


def content(path: Path) -> dict[str, bytes]:
    """Return the bytes of a file, or of all files below a folder."""
    paths = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
    return {str(one.relative_to(path)): one.read_bytes() for one in paths}


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def message(act: Callable[[], object]) -> str:
    try:
        act()
    except OSError as fault:
        return str(os_faults.named(fault))
    return ""


def refused(disk: Path, target: Path, write: Callable[[], object], free: Callable[[], object]) -> Found:
    """Write on a disk that refuses, and again when it no longer does."""
    target_was, all_was = content(target), names(disk)
    said = message(write)
    found = {
        "message": said,
        "former": content(target) == target_was,
        "litter": sorted(set(names(disk)) - set(all_was)),
    }
    free()
    write()
    return {**found, "later": content(target) != target_was, "after": names(disk)}


def scenarios(root: Path) -> Iterator[tuple[str, Callable[[], Found]]]:
    small = np.zeros(3)
    rows = [example(i, question="why? " * 1000) for i in range(400)]
    writers: dict[str, tuple[Callable[[Path], object], Callable[[Path], object]]] = {
        "rows": (lambda path: storage.write_rows(path, rows[:1]), lambda path: storage.write_rows(path, rows)),
        "json": (lambda path: storage.write_json(path, 1), lambda path: storage.write_json(path, NUMBERS.tolist())),
        "arrays": (
            lambda path: storage.write_arrays(path, {"a": small}),
            lambda path: storage.write_arrays(path, {"a": NUMBERS}),
        ),
        "checkpoint": (
            lambda path: save_tensors(path, {"a": torch.zeros(3)}, about={}),
            lambda path: save_tensors(path, {"a": torch.from_numpy(NUMBERS)}, about={}),
        ),
        "folder": (
            lambda path: write_folder(path, lambda inside: _in(inside, b"former")),
            lambda path: write_folder(path, lambda inside: _in(inside, bytes(NUMBERS.data))),
        ),
        "folder by a library": (
            lambda path: write_folder(path, lambda inside: save_file({"a": torch.zeros(3)}, inside / "a")),
            lambda path: write_folder(path, lambda inside: save_file({"a": torch.from_numpy(NUMBERS)}, inside / "a")),
        ),
    }
    for name, (before, after) in writers.items():
        yield f"full: {name}", lambda name=name, before=before, after=after: large(root / name, before, after)
    yield "full: not one block", lambda: not_one_block(root / "block")
    yield "full: no inode", lambda: no_inode(root / "inode")
    yield "full: ledger", lambda: ledger(root / "ledger")
    yield "full: a stage", lambda: stage(root / "stage")
    yield "read-only: a file", lambda: read_only(root / "ro")
    yield "read-only: a stage", lambda: read_only_stage(root / "ro stage")
    yield "read-only: results beside", lambda: read_only_beside(root / "ro beside")
    yield "limit: file size", lambda: file_size(root / "size")
    yield "limit: descriptors", lambda: descriptors(root / "descriptors")
    yield "limit: name", lambda: long_name(root / "name")
    yield "permission: a stage", lambda: permission(root / "permission")  # the last: gives its rights up


def _in(folder: Path, content: bytes) -> None:
    (folder / "first").write_bytes(b"first")
    (folder / "second").write_bytes(content)


def large(folder: Path, before: Callable[[Path], object], after: Callable[[Path], object]) -> Found:
    disk = mount(folder)
    before(disk / "target")
    grown = ["mount", "-o", "remount,size=40m", str(disk)]
    return refused(disk, disk / "target", lambda: after(disk / "target"), lambda: subprocess.run(grown, check=True))


def not_one_block(folder: Path) -> Found:
    disk = mount(folder)
    storage.write_text(disk / "card", "former")
    ballast = fill(disk)
    return refused(disk, disk / "card", lambda: storage.write_text(disk / "card", "later"), ballast.unlink)


def no_inode(folder: Path) -> Found:
    disk = mount(folder, "nr_inodes=3")
    storage.write_text(disk / "card", "former")
    ballast = disk / "ballast"
    ballast.touch()
    at_start = ""
    try:
        os_faults.require_writable([disk / "other"])
    except os_faults.MachineError as fault:
        at_start = str(fault)
    found = refused(disk, disk / "card", lambda: storage.write_text(disk / "card", "later"), ballast.unlink)
    return {**found, "at start": at_start}


def ledger(folder: Path) -> Found:
    """Rows on disk stay; those that found no room are queued on, and written when there is some."""
    disk = mount(folder)
    kept = Ledger(disk)
    kept.put("a", {"text": "red"})
    kept.flush()
    ballast = fill(disk)
    kept.put("b", {"text": "blue" * 5000})
    with patch.dict(os.environ, WORLD_SIZE="2"):  # for one process alone it is no fault
        said = message(kept.flush)
    meanwhile = Ledger(disk)
    ballast.unlink()
    kept.flush()
    again = Ledger(disk)
    return {
        "message": said,
        "former": meanwhile.get("a") == {"text": "red"} and meanwhile.get("b") is None,
        "litter": [],
        "later": again.get("a") == {"text": "red"} and again.get("b") == {"text": "blue" * 5000},
        "after": [],
    }


def _call(folder: Path, where: Path | None = None) -> tuple[int, str]:
    """Run a stage whose results go to `where`; return its status and what it said."""
    words = [f"embeddings={folder / 'embeddings'}", *(f"{name}={(where or folder) / name}" for name in FILES)]
    spec = json.dumps({"code": "x", "config": InitialiseSelectorConfig(
        preset="p", selector=Selector(width=8), seed=3).model_dump(mode="json")})  # fmt: skip
    said = StringIO()
    with redirect_stderr(said):
        status = main(["initialise_selector", *words, "--spec", spec])
    return status, said.getvalue()


def stage(folder: Path) -> Found:
    """Fill the disk while a stage computes: it finds room at its start and none at its end."""
    disk = mount(folder)
    storage.write_arrays(disk / "embeddings", embedding_arrays(4))
    before = names(disk)
    write, ballast = storage.write_row, []

    def late(path: Path, row: Any) -> None:
        ballast.append(fill(disk))
        write(path, row)

    storage.write_row = late
    status, said = _call(disk)
    storage.write_row = write
    ballast.append(fill(disk, "more"))  # what the failed stage gave back
    at_start, said_at_start = _call(disk, disk / "other")
    for path in ballast:
        path.unlink()
    left = names(disk)
    for name in FILES:
        (disk / name).unlink(missing_ok=True)
    again, _ = _call(disk)
    return {
        "message": said, "status": [status, at_start, again], "at start": said_at_start,
        "litter": [name for name in left if ".tmp" in name or "owner" in name or name in ("card", "metrics")],
        "after": sorted(set(names(disk)) - set(before)),
    }  # fmt: skip


def _remounted(folder: Path) -> Path:
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    return folder


def read_only(folder: Path) -> Found:
    disk = mount(folder)
    storage.write_text(disk / "card", "former")
    _remounted(disk)
    writable = ["mount", "-o", "remount,rw", str(disk)]
    return refused(
        disk,
        disk / "card",
        lambda: storage.write_text(disk / "card", "later"),
        lambda: subprocess.run(writable, check=True),
    )


def read_only_stage(folder: Path) -> Found:
    disk = mount(folder)
    storage.write_arrays(disk / "embeddings", embedding_arrays(4))
    status, said = _call(_remounted(disk))
    return {"message": said, "status": [status], "after": names(disk)}


def read_only_beside(folder: Path) -> Found:
    """The card can be written, and the file before it cannot: nothing is computed first."""
    folder.mkdir()
    disk = mount(folder / "disk")
    storage.write_arrays(folder / "embeddings", embedding_arrays(4))
    _remounted(disk)
    good = [f"{name}={folder / name}" for name in ("embeddings", "optimiser", "metrics", "card")]
    said = StringIO()
    with redirect_stderr(said):
        status = main(["initialise_selector", *good, f"selector={disk / 'new' / 'selector'}", "--spec", "{}"])
    return {"message": said.getvalue(), "status": [status], "after": names(folder)}


@contextmanager
def limited(kind: int, soft: int) -> Iterator[None]:
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def file_size(folder: Path) -> Found:
    folder.mkdir()
    storage.write_text(folder / "card", "former")

    def write() -> None:
        storage.write_text(folder / "card", "x" * 5000)

    with limited(resource.RLIMIT_FSIZE, 4096):
        said = message(write)
        former, litter = (folder / "card").read_text() == "former", names(folder)[1:]
    write()
    return {"message": said, "former": former, "litter": litter, "later": True, "after": names(folder)}


def descriptors(folder: Path) -> Found:
    folder.mkdir()
    storage.write_text(folder / "card", "former")

    def write() -> None:
        storage.write_text(folder / "card", "later")

    with limited(resource.RLIMIT_NOFILE, 200):
        taken = []
        try:
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            said = message(write)
        for descriptor in taken:
            os.close(descriptor)
    former, litter = (folder / "card").read_text() == "former", names(folder)[1:]
    write()
    return {"message": said, "former": former, "litter": litter, "later": True, "after": names(folder)}


def long_name(folder: Path) -> Found:
    folder.mkdir()
    said = message(lambda: storage.write_text(folder / ("x" * 300), "text"))
    return {"message": said, "former": True, "litter": names(folder), "later": True, "after": []}


def permission(folder: Path) -> Found:
    folder.mkdir()
    storage.write_arrays(folder / "embeddings", embedding_arrays(4))
    folder.chmod(0o555)
    for path in (folder, *folder.parents):
        path.chmod(path.stat().st_mode | 0o055) if path.owner() == "root" and path != Path("/") else None
    if os.getuid() == 0:  # whom permissions do not concern
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
    status, said = _call(folder)
    return {"message": said, "status": [status], "after": names(folder)}


if __name__ == "__main__":
    results: dict[str, Found] = {}
    for name, act in scenarios(Path(sys.argv[1])):
        try:
            results[name] = act()
        except Exception:  # noqa: BLE001 - shown by the test of this scenario alone
            results[name] = {"message": traceback.format_exc()}
    sys.stdout.write(json.dumps(results))
