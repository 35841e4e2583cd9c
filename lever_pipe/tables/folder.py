"""Folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from lever_pipe import storage
from lever_pipe.tables.table import Table


def write_tables(tables: Sequence[Table], *, json: Path, folder: Path) -> None:
    """Write all tables as one JSON list, and each as CSV and Markdown into `folder`."""
    storage.write_json(json, [table.as_json() for table in tables])
    write_folder(folder, lambda path: _write_each(path, tables))


def _write_each(folder: Path, tables: Sequence[Table]) -> None:
    for table in tables:
        storage.write_text(folder / f"{table.id}.csv", table.as_csv())
        storage.write_text(folder / f"{table.id}.md", table.as_markdown())


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
