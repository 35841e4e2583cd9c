"""Tables as files: one JSON list, and a folder of CSV and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lever_pipe.base import storage
from lever_pipe.base.atomic import write_folder
from lever_pipe.report.tables.table import Table


def write_tables(tables: Sequence[Table], *, json: Path, folder: Path) -> None:
    """Write all tables as one JSON list, and each as CSV and Markdown into `folder`."""
    storage.write_json(json, [table.as_json() for table in tables])
    write_folder(folder, lambda path: _write_each(path, tables))


def _write_each(folder: Path, tables: Sequence[Table]) -> None:
    for table in tables:
        storage.write_text(folder / f"{table.id}.csv", table.as_csv())
        storage.write_text(folder / f"{table.id}.md", table.as_markdown())
