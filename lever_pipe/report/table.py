"""A table of cells, and its form as CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

from lever_pipe.base.errors import RecordError
from lever_pipe.report.catalogue import Voice
from lever_pipe.report.cells import Cell, Estimate, EvidenceLedger, Message, say
from lever_pipe.report.format import ends_of
from lever_pipe.report.long_format import csv_text

Whose = Literal["", "ours", "published", "emulated"]
"""Whose numbers a row or column holds."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its head, and whether it holds names, numbers or words; a page folds the last kind below the line."""

    head: Cell
    kind: Literal["name", "number", "words", "folded"] = "number"
    whose: Whose = ""


@dataclass(frozen=True, slots=True)
class TableLine:
    """A row of a table.

    Attributes:
        cells: one a column.
        whose: whose numbers it holds.
        groups: the policies behind it, which `comparability` holds against each other; none are not compared.
        marks: letters of its footnotes.
    """

    cells: tuple[Cell, ...]
    whose: Whose = ""
    groups: tuple[str, ...] = ()
    marks: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table.

    Attributes:
        id: unique; the stem of its CSV file, and its anchor on a page.
        section: the section of the page it stands in, as `contents.PAGES` names it.
        title: what it shows.
        columns: of every line.
        lines: the rows.
        lead: what it says, read before it.
        notes: how to read it, below it.
        footnotes: each with its mark.
        factor: what its lines are meant to differ in (`comparability.FACTORS`); empty where they are not compared.
    """

    id: str
    section: str
    title: Cell
    columns: tuple[Column, ...]
    lines: tuple[TableLine, ...]
    lead: Cell = None
    notes: tuple[Cell, ...] = ()
    footnotes: tuple[tuple[str, Cell], ...] = ()
    factor: str = ""

    def __post_init__(self) -> None:
        for line in self.lines:
            if len(line.cells) != len(self.columns):
                wanted = f"table '{self.id}': expected {len(self.columns)} cells a line"
                raise RecordError(wanted, found=f"{len(line.cells)}", do="Give every column a cell.")

    def without_empty_columns(self) -> Table:
        """Return the table without columns in which no line has a cell."""
        kept = [i for i in range(len(self.columns)) if any(line.cells[i] is not None for line in self.lines)]
        lines = tuple(replace(line, cells=tuple(line.cells[i] for i in kept)) for line in self.lines)
        return replace(self, columns=tuple(self.columns[i] for i in kept), lines=lines)

    def noted(self, ledger: EvidenceLedger) -> Table:
        """Return the table with every derived number in the evidence, under `table/ID`.

        Raises:
            RecordError: a cell refers to a row that is missing.
        """
        at = f"table/{self.id}"
        lines = tuple(
            replace(line, cells=tuple(ledger.note(cell, at, f"{i}.{j}") for j, cell in enumerate(line.cells)))
            for i, line in enumerate(self.lines, start=1)
        )
        notes = tuple(ledger.note(note, at, f"note{i}") for i, note in enumerate(self.notes))
        head = {"title": ledger.note(self.title, at, "title"), "lead": ledger.note(self.lead, at, "lead")}
        return replace(self, lines=lines, notes=notes, **head)


def as_csv(table: Table, voice: Voice) -> str:
    """Return a table as CSV; an interval has columns of its own, and an absent cell is an empty field."""
    has_ends = [any(_has_ends(line.cells[i]) for line in table.lines) for i in range(len(table.columns))]
    heads = [(voice.text(column.head), ends) for column, ends in zip(table.columns, has_ends, strict=True)]
    named = ([head, f"{head} low", f"{head} high"] if ends else [head] for head, ends in heads)
    lines = (
        [text for cell, ends in zip(line.cells, has_ends, strict=True) for text in _fields(cell, voice, with_ends=ends)]
        for line in table.lines
    )
    return csv_text([*chain.from_iterable(named)], lines)


def heads(*ids: str, first: Literal["name", "words"] = "name") -> tuple[Column, ...]:
    """Return columns of numbers by the ids of their heads, the first one of names."""
    named, *others = ids
    return (Column(Message(named), first), *(Column(Message(name)) for name in others))


def beside(
    names: Sequence[Cell],
    ours: Sequence[Cell],
    theirs: Sequence[Cell],
    groups: tuple[tuple[str, ...], tuple[str, ...]] = ((), ()),
) -> Iterator[TableLine]:
    """Yield the line of ours and below it the published one, each only where it has a cell; `groups` are of both."""
    sides: tuple[tuple[Whose, Sequence[Cell]], ...] = (("ours", ours), ("published", theirs))
    for (whose, cells), of in zip(sides, groups, strict=True):
        if any(cell is not None for cell in cells):
            yield TableLine((*names, say(whose), *cells), whose, of)


def _has_ends(cell: Cell) -> bool:
    return isinstance(cell, Estimate) and cell.low == cell.low


def _fields(cell: Cell, voice: Voice, *, with_ends: bool) -> Sequence[str]:
    if not with_ends:
        return (voice.text(cell),)
    if not isinstance(cell, Estimate) or not _has_ends(cell):
        return (voice.text(cell), "", "")
    return (voice.text(cell.plain), *ends_of(cell.low, cell.high, cell.interval_digits))
