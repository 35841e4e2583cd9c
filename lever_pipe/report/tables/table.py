"""One table of the report, and its forms: JSON, CSV and Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from lever_pipe.report.tables.text import ABSENT, INTERVAL

DASH = "–"
GROUP = "#group"
"""Key of a row that names the policies behind it; never a column."""


@dataclass(frozen=True, slots=True)
class Table:
    """A titled frame of text; `notes` hold the lineage of the published numbers in it."""

    id: str  # unique, and the stem of its files
    document: str  # the section it stands in: `000`, `001`, `002`, `extra`, `statistics`, `agreement`, `why`, `claims`
    title: str
    caption: str
    frame: pd.DataFrame
    notes: tuple[str, ...] = field(default=())
    factor: str = ""  # what the rows are meant to differ in; empty where they are not compared
    groups: tuple[str, ...] = field(default=())  # one a row: the policies behind it (`policy_names.group_of`), or empty
    marks: tuple[str, ...] = field(default=())  # one a row: letters of its footnotes, such as `a` or `ab`
    footnotes: tuple[str, ...] = field(default=())  # in the order of their letters
    lead: str = ""  # what the table says, to be read before it

    def as_json(self) -> dict[str, Any]:
        """Return the table as JSON values."""
        return {
            "id": self.id,
            "document": self.document,
            "title": self.title,
            "caption": self.caption,
            "notes": list(self.notes),
            "factor": self.factor,
            "groups": list(self.groups),
            "marks": list(self.marks),
            "footnotes": list(self.footnotes),
            "lead": self.lead,
            "columns": [str(column) for column in self.frame.columns],
            "rows": [[str(cell) for cell in row] for row in self.frame.itertuples(index=False)],
        }

    def as_csv(self) -> str:
        """Return the frame as CSV: an absent cell is an empty field, an interval has columns of its own."""
        columns: dict[str, list[str]] = {}
        for name in self.frame.columns:
            cells = [str(cell) for cell in self.frame[name]]
            found = [INTERVAL.fullmatch(cell) for cell in cells]
            if not any(found):
                columns[str(name)] = cells
                continue
            columns[str(name)] = [match["value"] if match else cell for match, cell in zip(found, cells, strict=True)]
            for end in ("low", "high"):
                columns[f"{name} {end}"] = [match[end] if match else ABSENT for match in found]
        return pd.DataFrame(columns, dtype=object).to_csv(index=False, lineterminator="\n")

    def as_markdown(self) -> str:
        """Return title, table, caption and notes as Markdown."""
        rows = [list(row) for row in self.frame.itertuples(index=False)]
        for row, letters in zip(rows, self.marks or ("",) * len(rows), strict=True):
            row[0] = f"{row[0]} ({letters})" if letters else row[0]
        lead = [self.lead] if self.lead else []
        parts = [f"# {self.title}", *lead, markdown_grid(self.frame.columns, rows), *self.footnotes]
        parts.append(self.caption)
        if self.notes:
            parts.append("\n".join(f"- {note}" for note in self.notes))
        return "\n\n".join(parts) + "\n"


def markdown_grid(columns: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table: first column left, the others right; absent cells are dashes."""
    head = [_escape(column) for column in columns]
    lines = [head, [":--", *["--:"] * (len(head) - 1)]]
    lines += [[_escape(cell) or DASH for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def frame_of(rows: Sequence[Mapping[str, str]], columns: Sequence[str]) -> pd.DataFrame:
    """Return rows of text as a frame of those `columns` that hold anything; missing keys become absent cells."""
    kept = [column for column in columns if any(row.get(column) for row in rows)]
    cells = [[row.get(column, ABSENT) for column in kept] for row in rows]
    return pd.DataFrame(cells, columns=kept, dtype=object)


def groups_of(rows: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Return the policies behind each row."""
    return tuple(row.get(GROUP, "") for row in rows)


def beside(
    keys: Mapping[str, str],
    *,
    ours: Mapping[str, str],
    published: Mapping[str, str],
    groups: tuple[str, str] = ("", ""),
) -> list[dict[str, str]]:
    """Return one row of ours and, where anything was published, one below it; nothing without ours.

    `keys` are the leading cells that both rows repeat, so that each row can be read alone; `groups` names the
    policies behind ours and behind the published row.
    """
    if not any(ours.values()):
        return []
    rows = [{**keys, "Source": "ours", **ours, GROUP: groups[0]}]
    if any(published.values()):
        rows.append({**keys, "Source": "published", **published, GROUP: groups[1]})
    return rows


def _escape(cell: object) -> str:
    return str(cell).replace("|", "\\|").replace("\n", " ")
