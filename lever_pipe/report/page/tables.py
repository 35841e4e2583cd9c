"""Tables as the page shows them: checked, spoken in the page's language, each cell with its look."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_letters
from typing import Any

from pydantic import ValidationError, model_validator

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.sections import Section
from lever_pipe.report.page.numbers import NUMBER, numbers_in
from lever_pipe.report.page.series import split_outside_brackets

Say = Callable[[str], str]

TAIL = r"( ± .+| \[.+\]| \(.+\))"
NUMERIC = re.compile(rf"[<>±]?[-+−]?{NUMBER} ?%?{TAIL}?")
WITH_TAIL = re.compile(rf"([<>]?[-+−]?{NUMBER}%?){TAIL}")
"""A number and what stands small behind it: a spread, an interval, a remark."""
KINDS = {
    "ours": "ours",
    "our": "ours",
    "published": "published",
    "document": "published",
    "emulated": "emulated",
    "control": "ours",
}
"""First words of cells in the column `Source`, and of column heads, that say whose numbers these are."""
VERDICTS = {
    "supported": "yes",
    "held": "yes",
    "contradicted": "no",
    "missed": "no",
    "reproduced": "yes",
    "not reproduced": "open",
    "also without the fault": "mute",
    "not supported": "open",
    "not testable": "mute",
    "not defined here": "mute",
}
"""Cells that judge; the word is shown with a colour."""
SERIES = ("；", "; ")
"""What stands between the items of a series, by language."""
SOURCE = "Source"
NAMES = {"Preset", "Arm"}
"""Columns of names that the configuration gives; they stand as code, and no language changes them."""
WORDS_OF_NUMBERS = {"best", "reference"}
"""Cells that stand in a column of differences for the row that the others are compared with."""
LONG = 24  # rows beyond which a table of numbers is folded
WIDTHS = {"brief": 14.0, "words": 30.0, "prose": float("inf")}
"""Names of the widths of columns of words, and the longest cell that each takes."""


class PageTable(Section):
    """One table of a JSON list, as `tables.table.Table.as_json` writes it."""

    id: str
    document: str
    title: str
    caption: str
    notes: tuple[str, ...]
    factor: str
    groups: tuple[str, ...]
    marks: tuple[str, ...]
    footnotes: tuple[str, ...]
    lead: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @model_validator(mode="after")
    def _is_complete(self) -> PageTable:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"table '{self.id}': every row must have {len(self.columns)} cells")
        if self.marks and len(self.marks) != len(self.rows):
            raise ValueError(f"table '{self.id}': {len(self.marks)} marks for {len(self.rows)} rows")
        if any(letter not in self.letters for letter in "".join(self.marks)):
            raise ValueError(f"table '{self.id}': a mark names no footnote")
        return self

    @property
    def cells(self) -> tuple[tuple[str, ...], ...]:
        """Return the rows, with names as code."""
        named = [index for index, column in enumerate(self.columns) if column in NAMES]
        return tuple(
            tuple(f"`{cell}`" if cell and index in named else cell for index, cell in enumerate(row))
            for row in self.rows
        )

    @property
    def letters(self) -> str:
        """Return the letters of the footnotes, in order."""
        return ascii_letters[: len(self.footnotes)]

    @property
    def foot(self) -> tuple[tuple[str, str], ...]:
        """Return letter and text of each footnote; the text may begin with its letter, as `a: `."""
        pairs = zip(self.letters, self.footnotes, strict=True)
        return tuple((letter, note.removeprefix(f"{letter}: ")) for letter, note in pairs)

    def texts(self) -> list[str]:
        """Return every text of the table, each as often as it is shown."""
        texts = (self.title, self.lead, self.caption, *self.notes, *(note for _, note in self.foot), *self.columns)
        return [text for text in (*texts, *(cell for row in self.cells for cell in row)) if text]


@dataclass(frozen=True, slots=True)
class CellView:
    """A cell: its main text, what stands small behind it, and the name of its look."""

    text: str
    tail: str = ""
    look: str = ""

    @property
    def whole(self) -> str:
        """Return the cell as one text."""
        return f"{self.text} {self.tail}" if self.tail else self.text

    @property
    def lines(self) -> list[str]:
        """Return the main text, a line an item where it is a series of numbers."""
        joint = next((joint for joint in SERIES if joint in self.text), "")
        items = split_outside_brackets(joint, self.text) if joint else [self.text]
        if len(items) > 1 and not all(numbers_in(item) for item in items):
            return [self.text]
        return [*(f"{item}{joint.rstrip()}" for item in items[:-1]), items[-1]]


@dataclass(frozen=True, slots=True)
class ColumnView:
    """A column's head; `is_number` says that it sorts by number, `kind` whose numbers it holds."""

    head: str
    is_number: bool
    is_name: bool  # the first one, which names its row and stands left
    kind: str
    width: str  # of a column of words: `brief`, `words`, `prose`

    @property
    def look(self) -> str:
        """Return the names of the column's looks."""
        return " ".join(filter(None, ("num" if self.is_number and not self.is_name else self.width, self.kind)))


@dataclass(frozen=True, slots=True)
class RowView:
    """A row's cells; `kind` says whose numbers it holds, `marks` are the letters of its footnotes."""

    cells: tuple[CellView, ...]
    kind: str
    marks: str


@dataclass(frozen=True, slots=True)
class TableView:
    """A table ready to print; `anchor` is its name within the page."""

    anchor: str
    id: str
    title: str
    lead: str
    caption: str
    notes: tuple[str, ...]
    footnotes: tuple[tuple[str, str], ...]
    columns: tuple[ColumnView, ...]
    rows: tuple[RowView, ...]
    csv: str

    @property
    def is_long(self) -> bool:
        """Return whether the table is folded until a reader opens it."""
        return len(self.rows) > LONG and not self.is_wordy

    @property
    def is_wordy(self) -> bool:
        """Return whether several columns hold prose, so that the table is set smaller."""
        return sum(column.width == "prose" and not column.is_number for column in self.columns) > 1


def read_tables(paths: Sequence[Path]) -> list[PageTable]:
    """Return the tables of all files, in order.

    Raises:
        RecordError: a file is missing or malformed, or two tables share an id.
    """
    found: dict[str, PageTable] = {}
    for path in paths:
        values = storage.read_json(path)
        if not isinstance(values, list):
            raise RecordError(f"{path}: expected a list of tables", found=type(values).__name__, do="Rebuild the file.")
        for table in (_checked(value, path) for value in values):
            if table.id in found:
                raise RecordError(
                    f"{path}: expected a table of another id", found=f"'{table.id}' twice", do="Rename it."
                )
            found[table.id] = table
    return list(found.values())


def view(table: PageTable, *, csv: str, say: Say) -> TableView:
    """Return a table as it is shown; `csv` is the link to its file."""
    columns = tuple(_column(table, index, say) for index in range(len(table.columns)))
    source = table.columns.index(SOURCE) if SOURCE in table.columns else None
    marks = table.marks or ("",) * len(table.rows)
    return TableView(
        anchor="table-" + re.sub(r"[^a-z0-9_.]+", "-", table.id.lower()),
        id=table.id,
        title=say(table.title),
        lead=say(table.lead) if table.lead else "",
        caption=say(table.caption) if table.caption else "",
        notes=tuple(say(note) for note in table.notes),
        footnotes=tuple((letter, say(note)) for letter, note in table.foot),
        columns=columns,
        rows=tuple(
            RowView(
                cells=tuple(_cell(cell, index == source, say) for index, cell in enumerate(row)),
                kind=_kind(row[source]) if source is not None else "",
                marks=letters,
            )
            for row, letters in zip(table.cells, marks, strict=True)
        ),
        csv=csv,
    )


def _checked(value: Any, path: Path) -> PageTable:
    try:
        return PageTable.model_validate(value)
    except ValidationError as fault:
        name = value.get("id", "?") if isinstance(value, dict) else "?"
        found = "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in fault.errors()[:5])
        raise RecordError(f"{path}: expected a table", found=f"'{name}': {found}", do="Rebuild the file.") from None


def _column(table: PageTable, index: int, say: Say) -> ColumnView:
    cells = [row[index] for row in table.cells if row[index]]
    numeric = [cell for cell in cells if cell not in WORDS_OF_NUMBERS]
    is_number = bool(numeric) and all(NUMERIC.fullmatch(cell) for cell in numeric)
    head, longest = table.columns[index], max(map(len, cells), default=0)
    width = next(name for name, limit in WIDTHS.items() if longest <= limit)
    return ColumnView(say(head) if head else "", is_number, index == 0, _kind(head) if index else "", width)


def _kind(text: str) -> str:
    return KINDS.get(text.partition(" ")[0].lower().removesuffix(":"), "")


def _cell(cell: str, is_source: bool, say: Say) -> CellView:
    if not cell:
        return CellView("")
    if is_source:
        return CellView(say(cell), look=f"tag {_kind(cell)}".strip())
    if cell in VERDICTS:
        return CellView(say(cell), look=f"verdict {VERDICTS[cell]}")
    parts = WITH_TAIL.fullmatch(cell)
    spoken = say(cell)
    if parts is None or WITH_TAIL.fullmatch(spoken) is None:
        return CellView(spoken)
    main, _, tail = spoken.partition(" ")
    return CellView(main, tail)
