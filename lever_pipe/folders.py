"""Folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path


def write_folder(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a sibling temporary folder, then put it in the place of `path`.

    A killed process never leaves half a folder under `path`; files of a former run do not survive in it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    former = path.with_name(f".{path.name}.{os.getpid()}.former")
    try:
        temporary.mkdir()
        write(temporary)
        if path.exists():
            path.rename(former)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(former, ignore_errors=True)
