"""Small finished jobs to store: their content follows from a number, so that any mix-up shows."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lever_pipe.base import contents
from lever_pipe.base.records import Manifest
from lever_pipe.runtime.store import Store

VERSIONS = {"python": "3.11.9", "torch": "2.13.0"}
GB = 10**9
SIZE = 3017  # bytes of a job's outputs


def a_store(folder: Path, *, max_bytes: int = GB) -> Store:
    return Store(folder, max_bytes=max_bytes)


def key(number: int) -> str:
    return hashlib.sha256(f"key {number}".encode()).hexdigest()


def blob_bytes(number: int, size: int) -> bytes:
    return random.Random(number).randbytes(size)


def a_manifest(outputs: Mapping[str, Path], **changes: Any) -> Manifest:
    values = {
        "stage": "train_rce_epoch",
        "config": {"epoch": 1, "seed": 0},
        "inputs": {"start": "ab" * 32},
        "code": "c0de",
        "commit": "unknown",
        "dirty": False,
        "versions": VERSIONS,
        "device": "cpu",
        "threads": 1,
        "seconds": 12.5,
        "outputs": {name: contents.digest(path) for name, path in outputs.items()},
        "paths": {name: str(path) for name, path in outputs.items()},
    }
    return Manifest(**{**values, **changes})


def work(folder: Path, number: int = 0, *, size: int = 3000) -> dict[str, Path]:
    """Write the outputs of a job: a file, and a folder of three files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights.bin").write_bytes(blob_bytes(number, size))
    (folder / "last" / "inner").mkdir(parents=True, exist_ok=True)
    (folder / "last" / "inner" / "number.txt").write_text(str(number))
    (folder / "last" / "empty").write_bytes(b"")
    (folder / "last" / "shared.txt").write_text("the same for all")
    return targets(folder)


def targets(folder: Path) -> dict[str, Path]:
    """Return where the outputs of `work` go."""
    return {"weights": folder / "weights.bin", "last": folder / "last"}


def stored_work(store: Store, folder: Path, number: int = 0, **changes: Any) -> dict[str, Path]:
    """Store a job's work, and return its outputs."""
    outputs = work(folder, number)
    assert store.put(key(number), a_manifest(outputs, **changes))
    return outputs


def tree(folder: Path) -> dict[str, bytes | str | None]:
    """Return everything below a folder, hidden or not: bytes of files, None for folders, what links name."""
    return {
        str(path.relative_to(folder)): f"-> {path.readlink()}"
        if path.is_symlink()
        else None
        if path.is_dir()
        else path.read_bytes()
        for path in sorted(folder.rglob("*"))
    }


def entries(store: Store) -> list[Path]:
    """Return the folders of all finished work."""
    return sorted(store.folder.glob("work/*/*"))


def entry_of(store: Store, number: int = 0) -> Path:
    (found,) = (store.folder / "work" / key(number)[:2]).glob(f"{key(number)}.*")
    return found


def weights_of(store: Store, number: int = 0) -> Path:
    """Return the path of a job's weights; its outputs are in the order of their names."""
    return entry_of(store, number) / "1/weights.bin"
