"""Long-format CSV for machines: one observation a line, numbers free of another machine's last bits."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence


def decimal(value: float) -> str:
    """Return at most nine significant digits: below what the last bits of another machine could move; NaN is empty."""
    return "" if math.isnan(value) else f"{value:.9g}"


def csv_text(columns: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Return a header and the lines as CSV; None becomes an empty field, a float its `decimal`."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([decimal(cell) if isinstance(cell, float) else cell for cell in line] for line in lines)
    return buffer.getvalue()
