"""Long-format CSV for machines: one observation a line, numbers free of another machine's last bits."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError


def decimal(value: float) -> str:
    """Return at most nine significant digits: below what the last bits of another machine could move; NaN is empty."""
    return "" if math.isnan(value) else f"{value:.9g}"


def csv_text(columns: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Return a header, none of no column, and the lines as CSV: floats as `decimal` writes them, None as nothing."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([columns] if columns else [])
    writer.writerows([decimal(cell) if isinstance(cell, float) else cell for cell in line] for line in lines)
    return buffer.getvalue()


def write_csv(path: Path, columns: Sequence[str], lines: Iterable[Sequence[object]]) -> None:
    """Write what `csv_text` returns."""
    storage.write_text(path, csv_text(columns, lines))


def read_csv(path: Path, columns: Sequence[str] = ()) -> list[list[str]]:
    """Return the lines of a CSV file, the head first.

    Raises:
        RecordError: no such file, no CSV, or a head that is not that of the columns, where any are wanted.
    """
    lines = [cells for _, cells in storage.read_csv(path)]
    if columns and lines[:1] != [list(columns)]:
        head = ", ".join(lines[0]) if lines else "an empty file"
        raise RecordError(f"{path}: expected the columns {', '.join(columns)}", found=head, do="Run its rule again.")
    return lines
