"""What is asked to be traced: a file, or a cell with the rows of the evidence that it prints.

`results/report/index.json` states for each cell of a table the lines of `results/report/evidence.csv`; each line there
states the lines of a long-format file, or the rows that it is worked out from.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple

from lever_pipe.base import storage
from lever_pipe.base.errors import ConfigError, RecordError, UnknownMemberError
from lever_pipe.base.policy_names import PolicyName, group_of
from lever_pipe.base.sections import did_you_mean, nearest
from lever_pipe.report.evidence import DERIVED, EvidenceRow, adjusted_in, read_evidence
from lever_pipe.runtime.rerun.why_names import STUDIES

REPORT, EVIDENCE, INDEX = "report", "evidence.csv", "index.json"
REFERENCE = re.compile(r"e(?P<line>\d{1,9})(?::(?P<part>\w+))?")
SHOWN_ROWS, SHOWN_TABLES = 6, 12
RUNS = ("preset~", "baseline/", "arm~")
"""How names of policies and agents begin that have files of their own."""
FAMILY_WIDE = "p_holm"
"""Column whose value depends on every comparison of its family."""

Row = dict[str, str]


class Reference(NamedTuple):
    """A row of the evidence with all that it is made of.

    Attributes:
        line: of the file of evidence.
        part: which of its columns is meant.
        of: what a derived value is worked out from, and the family of an adjusted p.
    """

    line: int
    row: EvidenceRow
    part: str = "value"
    of: tuple[Reference, ...] = ()

    @property
    def measured(self) -> Iterator[Reference]:
        """Yield the rows at the ends: none of them is made of others."""
        yield from (found for each in self.of for found in each.measured) if self.of else (self,)


class Asked(NamedTuple):
    """What is traced.

    Attributes:
        what: as asked for.
        results: the results folder.
        file: the file that holds it.
        table: id of a table of the report; empty for another file.
        row: place of the row, from 1; 0 for a whole file.
        column: the column's name; empty for a whole file.
        value: the cell's text.
        cells: the whole row.
        references: the rows of the evidence that the cell prints.
    """

    what: str
    results: Path
    file: Path
    table: str = ""
    row: int = 0
    column: str = ""
    value: str = ""
    cells: Mapping[str, str] = {}
    references: tuple[Reference, ...] = ()


class EvidenceFile:
    """A file of evidence, with its rows by line and by key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows = dict(enumerate(read_evidence(path), start=2))
        self._lines = {row.key: line for line, row in self._rows.items()}

    def of(self, text: str) -> Reference:
        """Return the row of `e12`, `e12:p_holm` or a key.

        Raises:
            UnknownMemberError: there is none.
        """
        found = REFERENCE.fullmatch(text)
        line = int(found["line"]) if found else self._lines.get(text, 0)
        part = (found and found["part"]) or "value"
        if line not in self._rows or part not in EvidenceRow._fields:
            do = did_you_mean(text, () if found else self._near(text), f"Its lines are e2 to e{len(self._rows) + 1}.")
            raise UnknownMemberError(f"trace: expected a row of {self.path}", found=f"'{text}'", do=do)
        return self._at(line, part, frozenset())

    def _at(self, line: int, part: str, above: frozenset[int]) -> Reference:
        row = self._rows[line]
        if part == FAMILY_WIDE:
            same = (
                (i, of)
                for i, of in self._rows.items()
                if of.study == row.study and adjusted_in(of.family) == adjusted_in(row.family)
            )
            return Reference(line, row, part, tuple(Reference(i, of, "p") for i, of in same if of.p == of.p))
        missing = [key for key in row.operands if key not in self._lines]
        if missing or line in above:
            what = f"{self.path}:{line}: expected rows that it is made of"
            raise RecordError(what, found=f"no {missing[0] if missing else 'itself'}", do="Run the workflow again.")
        of = (self._at(self._lines[key], "value", above | {line}) for key in row.operands)
        return Reference(line, row, part, tuple(of))

    def _near(self, text: str) -> list[str]:
        """Return the keys of the nearest subject: all keys are too many to compare with."""
        head = nearest(_head(text), set(map(_head, self._lines)))
        return [key for key in self._lines if _head(key) == head]


def _head(key: str) -> str:
    return ":".join(key.split(":")[:2])


def asked_for(what: str, results: Path) -> Asked:
    """Return what a word of the command line means.

    Args:
        what: a path, a table's id or a CSV file with `:ROW:COLUMN`, a key of the evidence, or `e12`. A row is a number
            from 1, a cell of it, or several cells as `KL_BETA=0.15|Source=ours`; a column its name or a number from 1.
        results: the results folder.

    Raises:
        UnknownMemberError: no such file, table, row or column.
        ConfigError: a row without a column, or a word that several rows match.
    """
    if _exists(what):
        return Asked(what, _results_of(Path(what), results), Path(what))
    if REFERENCE.fullmatch(what) or what.partition(":")[0] in (*STUDIES, DERIVED):
        return _of_evidence(what, results)
    is_file = ".csv:" in what
    name, _, place = what.partition(".csv:" if is_file else ":")
    path = Path(f"{name}.csv") if is_file else results / REPORT / "tables" / f"{name}.csv"
    if is_file and not _exists(str(path)):
        raise UnknownMemberError("trace: expected a file", found=f"no {path}", do="Name a CSV file below the results.")
    root = _results_of(path, results) if is_file else results
    is_table = not is_file or path.parent == root / REPORT / "tables"
    table = _table(path.stem if is_file else name, root) if is_table else {}
    asked = Asked(what, root, path, table=path.stem if is_table else "")
    return _cell(asked, table, place) if place else asked


def read_csv(path: Path) -> list[Row]:
    """Return the rows of a CSV file by column; what a row lacks is empty.

    Raises:
        RecordError: a file that is no CSV.
    """
    head, lines = _grid(path)
    return [dict(zip(head, line, strict=True)) for line in lines]


def names_of(row: Row) -> frozenset[str]:
    """Return the policies or agents that a row of a long-format file is about."""
    found = {row[column] for column in ("group", "left", "right", "base") if row.get(column)}
    if row.get("policy"):
        found.add(f"baseline/{row['policy']}" if row.get("stage") == "baseline" else row["policy"])
    elif row.get("preset") and row.get("epoch"):
        kind = "on_policy" if row.get("mode") == "on_policy" and row["stage"] == "grpo" else row["stage"]
        base, seed, epoch = (int(row[key]) if row.get(key) else None for key in ("base_rce_epoch", "seed", "epoch"))
        beta = float(row["kl_beta"]) if row.get("kl_beta") else None
        found.add(str(PolicyName(kind=kind, preset=row["preset"], base=base, beta=beta, seed=seed, epoch=epoch)))
    if row.get("arm"):
        of_seed = f"/seed~{row['seed']}" if row.get("seed") else ""
        found |= {f"arm~{row[key]}{of_seed}" for key in ("arm", "reference", "against") if row.get(key)}
    return frozenset(found)


def policies_of(row: EvidenceRow) -> frozenset[str]:
    """Return the policies or agents that a row of the evidence is about; none if it is about anything else, too."""
    names = {name for name in (row.subject, row.against) if name}
    return frozenset(names if all(name.startswith(RUNS) for name in names) else ())


def keeps(path: str, names: frozenset[str]) -> bool:
    """Return whether a file of a list belongs to these policies; what belongs to no policy is kept."""
    run = PolicyName.in_path(path)
    if run and "answers/" not in path:
        group = group_of(str(run))
        return not names.isdisjoint((str(run), group, re.sub("/beta~[^/]+", "/beta~all", group)))
    _, is_answer, rest = path.partition("answers/")
    if not is_answer:
        return True
    batch = Path(rest).parent.as_posix()
    return any(
        batch == PolicyName.parse(n).batch if "seed~" in n else batch.startswith(n.partition("/")[0]) for n in names
    )


def _of_evidence(what: str, results: Path) -> Asked:
    """Return a row of the report's evidence, or of what it was built from where there is no report."""
    path = results / REPORT / EVIDENCE
    evidence = EvidenceFile(path if path.is_file() else results / EVIDENCE)
    found = evidence.of(what)
    values = {
        name: str(value) for name, value in found.row._asdict().items() if value == value and value not in ("", 0)
    }
    value = values.get(found.part, "")
    return Asked(what, results, evidence.path, "", found.line - 1, found.part, value, values, (found,))


def _cell(asked: Asked, table: Mapping[str, Any], place: str) -> Asked:
    head, lines = _grid(asked.file)
    row, separator, column = place.partition(":")
    if not separator or not row or not column:
        raise ConfigError(
            "trace: expected TABLE:ROW:COLUMN", found=f"'{asked.what}'", do=f"Columns: {', '.join(head)}."
        )
    y, x = _row_place([dict(zip(head, line, strict=True)) for line in lines], row), _column_place(head, column)
    asked = asked._replace(row=y + 1, column=head[x], value=lines[y][x], cells=dict(zip(head, lines[y], strict=True)))
    if asked.file.name == EVIDENCE:
        return asked._replace(references=(EvidenceFile(asked.file).of(f"e{y + 2}:{head[x]}"),))
    if not table:
        return asked
    try:
        listed = [str(text) for text in table["cells"][y][_columns_before(head, table["columns"], x)]]
    except (KeyError, IndexError, TypeError):
        raise _no_index(asked.results, f"no row {y + 1} and column {head[x]} of {asked.table}") from None
    if not listed:
        return asked
    evidence = EvidenceFile(asked.results / REPORT / EVIDENCE)
    return asked._replace(references=tuple(map(evidence.of, listed)))


def _table(name: str, results: Path) -> Mapping[str, Any]:
    """Return what the report's index tells of a table."""
    path = results / REPORT / INDEX
    if not path.is_file():
        do = "Run the workflow, or name its results with --results."
        raise UnknownMemberError(f"trace: expected a file, or a table of {path.parent}", found=f"'{name}'", do=do)
    index = storage.read_json(path)
    tables = index.get("tables") if isinstance(index, dict) else None
    if not isinstance(tables, dict):
        raise _no_index(results, "no tables")
    if name not in tables:
        do = did_you_mean(name, tables, f"One of: {', '.join(list(tables)[:SHOWN_TABLES])}, ...")
        raise UnknownMemberError(f"trace: expected a file, or a table of {path.parent}", found=f"'{name}'", do=do)
    return tables[name] if isinstance(tables[name], dict) else {"columns": ()}


def _no_index(results: Path, found: str) -> RecordError:
    return RecordError(
        f"{results / REPORT / INDEX}: expected the cells of each table", found=found, do="Run build_report."
    )


def _columns_before(head: Sequence[str], columns: Sequence[str], place: int) -> int:
    """Return which of a table's columns holds a column of its CSV file: an interval has two of its own there."""
    start = 0
    for i, name in enumerate(columns):
        start += 3 if list(head[start + 1 : start + 3]) == [f"{name} low", f"{name} high"] else 1
        if place < start:
            return i
    raise IndexError(place)


def _grid(path: Path) -> tuple[list[str], list[list[str]]]:
    """Return the head and the lines of a CSV file, all of one length."""
    try:
        with TextIOWrapper(storage.open_regular(path), "utf-8", newline="") as handle:
            head, *lines = [line for line in csv.reader(handle) if line] or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as fault:
        raise RecordError(f"{path}: expected CSV", found=str(fault), do="Run the rule that makes it.") from None
    return head, [[*line[: len(head)], *[""] * (len(head) - len(line))] for line in lines]


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # too long for a path, or no text of one
        return False


def _column_place(names: Sequence[str], column: str) -> int:
    lower = [name.lower() for name in names]
    if column.lower() in lower:
        return lower.index(column.lower())
    if _is_place(column, len(names)):
        return int(column) - 1
    do = did_you_mean(column, names, f"One of: {', '.join(names)}.")
    raise UnknownMemberError("trace: expected a column", found=f"'{column}'", do=do)


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


def _results_of(path: Path, default: Path) -> Path:
    """Return the results folder that a path lies in: what its study's folder lies in."""
    parts = path.parts
    for study in STUDIES:
        if study in parts[:-1]:
            return Path(*parts[: len(parts) - 1 - parts[::-1].index(study)])
    return default
