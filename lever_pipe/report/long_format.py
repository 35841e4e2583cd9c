"""Long-format CSV for machines: one observation per line, with numbers that are the same on every machine."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError


def decimal(value: float) -> str:
    """Return at most nine significant digits, because further ones depend on the machine; NaN is empty."""
    return "" if math.isnan(value) else f"{value:.9g}"


def csv_text(columns: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Return a header, if there are columns, and the lines as CSV; floats as in `decimal`, None as an empty field."""
    buffer = io.StringIO()
    # The csv module would end lines with a carriage return, too.
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([columns] if columns else [])
    writer.writerows([decimal(cell) if isinstance(cell, float) else cell for cell in line] for line in lines)
    return buffer.getvalue()


def write_csv(path: Path, columns: Sequence[str], lines: Iterable[Sequence[object]]) -> None:
    """Write the text of `csv_text` to a file."""
    storage.write_text(path, csv_text(columns, lines))


def read_csv(path: Path, columns: Sequence[str] = ()) -> list[list[str]]:
    """Return the lines of a CSV file, the head first.

    Raises:
        RecordError: a missing file, invalid CSV, or a head other than the expected columns.
    """
    lines = [cells for _, cells in storage.read_csv(path)]
    if columns and lines[:1] != [list(columns)]:
        head = ", ".join(lines[0]) if lines else "an empty file"
        raise RecordError(f"{path}: expected the columns {', '.join(columns)}", found=head, do="Run its rule again.")
    return lines
