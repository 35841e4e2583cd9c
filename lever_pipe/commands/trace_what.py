"""What somebody asks to trace: a figure, a table, or a cell of a table or CSV file."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lever_pipe.base import contents, storage
from lever_pipe.base.errors import ConfigError, RecordError, UnknownMemberError
from lever_pipe.base.parsing import nearest
from lever_pipe.runtime.rerun.why_names import STUDIES

NUMBER = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?")
SHOWN_ROWS = 6
TABLES = "tables"
KEYS = frozenset(("id", "columns", "rows"))
"""What makes an object a table."""

Row = dict[str, str]


class Asked(NamedTuple):
    """What is traced.

    Attributes:
        what: as asked for.
        results: the results folder.
        file: the file that holds it.
        table: id of a table of the report; empty for a figure or another file.
        row: place of the row, from 1; 0 for a whole file.
        column: the column's name; empty for a whole file.
        value: the cell's text.
        cells: the whole row.
        groups: policies behind the row, without their seeds; `published/...` for published numbers.
    """

    what: str
    results: Path
    file: Path
    table: str = ""
    row: int = 0
    column: str = ""
    value: str = ""
    cells: Mapping[str, str] = {}
    groups: tuple[str, ...] = ()

    @property
    def number(self) -> str:
        """Return the first number of the cell as it is printed, without its interval; empty: there is none."""
        found = NUMBER.search(self.value)
        return found[0].lstrip("+").replace(",", "") if found else ""


def asked_for(what: str, results: Path) -> Asked:
    """Return what a word of the command line means.

    Args:
        what: a path, a table's id, or either with `:ROW:COLUMN`. A row is a number from 1, a cell of it, or several
            cells as `KL_BETA=0.15|Source=ours`; a column its name or a number from 1.
        results: the results folder, for a table's id.

    Raises:
        UnknownMemberError: no such file, table, row or column.
        ConfigError: a row without a column, or a word that several rows match.
    """
    if _exists(what):
        return Asked(what, _results_of(Path(what), results), Path(what), table=_table_of(Path(what)))
    name, _, place = what.partition(".csv:") if ".csv:" in what else what.partition(":")
    row, separator, column = place.partition(":")
    path = Path(f"{name}.csv") if ".csv:" in what else None
    if path is not None and not path.is_file():
        raise UnknownMemberError("trace: expected a file", found=f"no {path}", do="Name a CSV file below the results.")
    root = _results_of(path, results) if path is not None else results
    table = _find_table(_table_of(path) if path is not None else name, root, path)
    if path is None and table is None:
        near = nearest(name, [str(each["id"]) for _, each in tables_below(root)])
        raise UnknownMemberError(
            f"trace: expected a file, or a table of {root}",
            found=f"'{name}'",
            do=f"Did you mean '{near}'?" if near else "Run the workflow, or name its results with --results.",
        )
    file = path or (table[0] if table else root)
    asked = Asked(what, root, file, table=str(table[1]["id"]) if table else "")
    if not place:
        return asked
    if not separator or not row or not column:
        raise ConfigError(
            "trace: expected TABLE:ROW:COLUMN", found=f"'{what}'", do=f"Columns: {', '.join(_columns(path, table))}."
        )
    rows = read_csv(path) if path is not None else _rows(table)
    return _cell(asked, rows, table[1] if table else {}, row, column)


def tables_below(results: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Return every table of the report with the JSON file that holds it.

    Raises:
        RecordError: a file of tables that cannot be read.
    """
    found = []
    for path in sorted(path for study in STUDIES for path in (results / study / TABLES).glob("*.json")):
        if contents.is_card(path):
            continue
        value = storage.read_json(path)
        listed = value if isinstance(value, list) else []
        found += [(path, each) for each in listed if isinstance(each, dict) and each.keys() >= KEYS]
    return found


def read_csv(path: Path) -> list[Row]:
    """Return the rows of a CSV file by column; what a row lacks is empty.

    Raises:
        RecordError: a file that is no CSV.
    """
    try:
        with path.open(encoding="utf-8", newline="") as handle:
            rows = list(csv.DictReader(handle))
    except (OSError, UnicodeDecodeError, csv.Error) as fault:
        raise RecordError(f"{path}: expected CSV", found=str(fault), do="Run the rule that makes it.") from None
    return [{name: cell or "" for name, cell in row.items() if name is not None} for row in rows]


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # too long for a path, or no text of one
        return False


def _cell(asked: Asked, rows: Sequence[Row], table: Mapping[str, Any], row: str, column: str) -> Asked:
    place = _row_place(rows, row)
    cells = rows[place]
    names = list(cells)
    by_name = {name.lower(): name for name in names}
    chosen = by_name.get(column.lower()) or (names[int(column) - 1] if _is_place(column, len(names)) else "")
    if not chosen:
        near = nearest(column, names)
        do = f"Did you mean '{near}'?" if near else f"One of: {', '.join(names)}."
        raise UnknownMemberError("trace: expected a column", found=f"'{column}'", do=do)
    groups = tuple(str(dict(enumerate(table.get("groups", ()))).get(place, "")).split())
    return asked._replace(row=place + 1, column=chosen, value=cells[chosen], cells=cells, groups=groups)


def _row_place(rows: Sequence[Row], row: str) -> int:
    if _is_place(row, len(rows)):
        return int(row) - 1
    parts = [part.partition("=") for part in row.split("|")]
    found = [i for i, cells in enumerate(rows) if all(_has(cells, *part) for part in parts)]
    if len(found) == 1:
        return found[0]
    if not found:
        do = f"Name a row from 1 to {len(rows)}, or a cell of it."
        raise UnknownMemberError("trace: expected a row", found=f"'{row}'", do=do)
    shown = "; ".join(f"{i + 1}: {' | '.join(list(rows[i].values())[:4])}" for i in found[:SHOWN_ROWS])
    raise ConfigError("trace: expected one row", found=f"{len(found)} with '{row}'", do=f"Name one by number: {shown}.")


def _has(cells: Row, name: str, separator: str, value: str) -> bool:
    if separator and name in cells:
        return cells[name] == value
    return f"{name}{separator}{value}" in cells.values()


def _is_place(text: str, count: int) -> bool:
    return text.isdecimal() and 1 <= int(text) <= count


def _table_of(path: Path) -> str:
    """Return the id of the table that a file of a table folder holds; empty for another file."""
    folder = path.parent
    return path.stem if folder.parent.name == TABLES and folder.with_suffix(".json").is_file() else ""


def _find_table(name: str, results: Path, path: Path | None) -> tuple[Path, dict[str, Any]] | None:
    """Return a table by its id: of a file in a table folder, that folder's own."""
    for file, table in tables_below(results):
        if table["id"] == name and (path is None or file.with_suffix("").resolve() == path.parent.resolve()):
            return file, table
    return None


def _rows(table: tuple[Path, dict[str, Any]] | None) -> list[Row]:
    if table is None:
        return []
    columns = list(map(str, table[1]["columns"]))
    return [dict(zip(columns, map(str, row), strict=False)) for row in table[1]["rows"]]


def _columns(path: Path | None, table: tuple[Path, dict[str, Any]] | None) -> list[str]:
    return list(map(str, table[1]["columns"])) if table else list(next(iter(read_csv(path)), {})) if path else []


def _results_of(path: Path, default: Path) -> Path:
    """Return the results folder that a path lies in: what its study's folder lies in."""
    parts = path.parts
    for study in STUDIES:
        if study in parts[:-1]:
            return Path(*parts[: len(parts) - 1 - parts[::-1].index(study)])
    return default
