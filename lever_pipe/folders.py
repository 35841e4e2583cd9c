"""Folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from lever_pipe import storage


def write_folder(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a sibling temporary folder, then put it in the place of `path`.

    A killed process or a power failure never leaves half a folder under `path`; files of a former run do not survive
    in it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    former = path.with_name(f".{path.name}.{os.getpid()}.former")
    try:
        temporary.mkdir()
        write(temporary)
        _sync(temporary)
        if path.exists():
            path.rename(former)
        temporary.rename(path)
        storage.sync_folder(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(former, ignore_errors=True)


def _sync(folder: Path) -> None:
    for parent, _, names in os.walk(folder):
        for name in names:
            with (Path(parent) / name).open("rb") as handle:
                os.fsync(handle.fileno())
        storage.sync_folder(Path(parent))
