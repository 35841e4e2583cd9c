"""A table as HTML: sortable by each cell's value, with its footnotes, whose numbers a line holds, and its CSV file."""

from __future__ import annotations

from collections.abc import Iterator

from markupsafe import escape

from lever_pipe.report.catalogue import ABSENT, Voice
from lever_pipe.report.cells import Cell, Number, PValue, numbers_in, say
from lever_pipe.report.table import Column, Table, TableLine

LONG = 21
"""Lines from which on a table is folded."""


def html(table: Table, voice: Voice, *, csv: str, heading: str = "h3") -> str:
    """Return a table in a box of its own.

    Args:
        table: with every derived number noted.
        voice: of the page.
        csv: link to its CSV file.
        heading: element of its title.
    """
    link = f'<a class="file" href="{escape(csv)}">CSV</a>'
    parts = [f'<section class="table" id="table-{escape(table.id)}">']
    parts.append(f"<{heading}>{voice.html(table.title)} {link}</{heading}>")
    parts.append(f"<p>{voice.html(table.lead)}</p>" if table.lead is not None else "")
    grid = "".join(_grid(table, voice))
    if len(table.lines) >= LONG:
        lines = voice.html(say("page.lines", n=len(table.lines)))
        grid = f'<details class="fold"><summary>{lines}</summary>{grid}</details>'
    feet = [f"<li><sup>{letter}</sup> {voice.html(note)}</li>" for letter, note in _lettered(table)]
    parts += [grid, f'<ul class="footnotes">{"".join(feet)}</ul>' if feet else ""]
    parts += [f'<p class="caption">{voice.html(note)}</p>' for note in table.notes]
    return "".join([*parts, "</section>"])


def _grid(table: Table, voice: Voice) -> Iterator[str]:
    yield '<div class="scroll"><table><thead><tr>'
    for column in table.columns:
        yield f'<th scope="col" class="{_look(column)}"><button type="button">{voice.html(column.head)}</button></th>'
    yield "</tr></thead><tbody>"
    for line in table.lines:
        yield f'<tr class="{line.whose}">' if line.whose else "<tr>"
        yield from _cells(table, line, voice)
        yield "</tr>"
    yield "</tbody></table></div>"


def _cells(table: Table, line: TableLine, voice: Voice) -> Iterator[str]:
    for i, (column, cell) in enumerate(zip(table.columns, line.cells, strict=True)):
        text = voice.html(cell) or f'<span class="absent" aria-hidden="true">{ABSENT}</span>'
        value = value_of(cell)
        sorted_by = "" if value is None else f' data-v="{value:.9g}"'
        marks = f"<sup>{escape(line.marks)}</sup>" if line.marks and i == 0 else ""
        tag = 'th scope="row"' if i == 0 else "td"
        is_phrase = column.kind == "number" and not isinstance(cell, Number | PValue | int | None)
        look = f"{_look(column)} phrase" if is_phrase else _look(column)
        yield f'<{tag} class="{look}"{sorted_by}>{text}{marks}</{tag[:2]}>'


def value_of(cell: Cell) -> float | None:
    """Return what a cell sorts by: its number, or the first one in its words; None of none."""
    if isinstance(cell, int):
        return float(cell)
    if isinstance(cell, Number | PValue):
        return None if cell.value != cell.value else cell.value
    return next((number.value for number in numbers_in(cell)), None)


def _look(column: Column) -> str:
    return f"{column.kind} {column.whose}".strip()


def _lettered(table: Table) -> Iterator[tuple[str, Cell]]:
    for i, note in enumerate(table.footnotes):
        yield chr(ord("a") + i), note
