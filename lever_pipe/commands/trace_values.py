"""What is asked to be traced, a figure, a table or a cell, and in which rows of which files a cell's number stands.

A table prints what long-format CSV files hold. Instead of knowing each table's code, the number itself is looked up: in
the files that the table's stage read, in rows about the same policies, shots and samples, as far as the cell tells.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, NamedTuple

from lever_pipe.base import contents, storage
from lever_pipe.base.errors import ConfigError, RecordError, UnknownMemberError
from lever_pipe.base.parsing import nearest
from lever_pipe.base.policy_names import PolicyName, group_of, values_in
from lever_pipe.runtime.rerun.why_names import STUDIES

NUMBER = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?")
SHOWN_ROWS = 6
TABLES = "tables"
KEYS = frozenset(("id", "columns", "rows"))
"""What makes an object a table."""

PUBLISHED = "published"
REFERENCES = ("reference", "reference_intention")
"""Names of the inputs that hold published numbers."""
SETTINGS = "lineage"
"""Name of the input that tells settings, not results."""
FAMILY_WIDE = frozenset(("p_holm", "Holm p"))
"""Columns whose value depends on every row of its family of comparisons."""
COLUMNS = {"Holm p": "p_holm", "p": "p", "Difference": "difference", "Gain": "difference", "Detectable": "detectable"}
"""Column of a table -> the column of the long-format file that it prints."""
MEASURES = frozenset(("samples", "shots", "epoch", "seed", "step", "shot"))
"""Columns that say what a row is about; their numbers are no results."""

_BETA = re.compile(r"KL_BETA=([0-9.]+)")
_SHOTS = re.compile(r"(?:^|.*\b)shot (\d+)$", re.IGNORECASE)

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


class FoundRow(NamedTuple):
    """A row of a file that the stage of a table read, with the cell's number in it.

    Attributes:
        input: the stage's name of the file.
        row: place of the row, from 1.
        value: as the file has it.
        keys: the other cells of the row that are not empty.
        names: policies that the row is about, with or without seed.
    """

    input: str
    path: str
    row: int
    column: str
    value: str
    keys: dict[str, str]
    names: frozenset[str]


def is_published(asked: Asked) -> bool:
    """Return whether a cell holds a number that was published, not ours."""
    if any(group.startswith(f"{PUBLISHED}/") for group in asked.groups):
        return True
    source = asked.cells.get("Source", "")
    return source.startswith(PUBLISHED) or asked.column == "Document" or asked.column.startswith("Published")


def earlier_epochs(groups: Iterable[str]) -> frozenset[str]:
    """Return these policies with the epochs before them: what a statistic over a run depends on."""
    found = set(groups)
    for group in groups:
        name = PolicyName.parse(group)
        found |= {str(name.at(epoch)) for epoch in range(1, name.epoch or 1)}
    return frozenset(found)


def sources_of(asked: Asked, inputs: Mapping[str, Path]) -> list[FoundRow]:
    """Return the rows among these inputs of a stage that hold a cell's number and are about its policies.

    Args:
        asked: a cell; without a number nothing is found.
        inputs: name -> path of the files that the table was built from; other than CSV files are passed over.
    """
    wanted = [name for name in REFERENCES if name in inputs] if is_published(asked) else None
    found: list[FoundRow] = []
    for name, path in inputs.items():
        is_wanted = name not in REFERENCES if wanted is None else name in wanted
        if asked.number and is_wanted and name != SETTINGS and path.suffix == ".csv" and path.is_file():
            found += _in_file(asked, name, path)
    return _narrowed(asked, found)


def names_of(row: Row) -> frozenset[str]:
    """Return the policies or agents that a row of a long-format file is about."""
    found = {row[column] for column in ("group", "left", "right") if row.get(column)}
    if row.get("policy"):
        found.add(f"baseline/{row['policy']}" if row.get("stage") == "baseline" else row["policy"])
    elif row.get("preset") and row.get("epoch"):
        kind = "on_policy" if row.get("mode") == "on_policy" and row["stage"] == "grpo" else row["stage"]
        base, seed, epoch = (int(row[key]) if row.get(key) else None for key in ("base_rce_epoch", "seed", "epoch"))
        beta = float(row["kl_beta"]) if row.get("kl_beta") else None
        name = PolicyName(kind=kind, preset=row["preset"], base=base, beta=beta, seed=seed, epoch=epoch)
        found.add(str(name))
    if row.get("arm"):
        arms = [row["arm"], *(row[key] for key in ("reference", "against") if row.get(key))]
        found |= {_agent(arm, row.get("seed")) for arm in arms}
    return frozenset(found)


def groups_of(asked: Asked, known: Iterable[str]) -> tuple[str, ...]:
    """Return the policies that a cell is about: of several behind its row, those that its column names, if any."""
    groups = asked.groups or tuple(sorted(names_of(dict(asked.cells))))
    beta = _BETA.fullmatch(asked.column)
    if len(groups) > 1 and beta:
        return tuple(group for group in groups if f"/beta~{beta[1]}/" in group) or groups
    return groups or _named_by(asked, known)


def keeps(path: str, names: frozenset[str]) -> bool:
    """Return whether a file of a list belongs to these policies; what belongs to no policy is kept."""
    run = PolicyName.in_path(path)
    if run and "answers/" not in path:
        return str(run) in names or group_of(str(run)) in names
    _, is_answer, rest = path.partition("answers/")
    if not is_answer or not names:
        return True
    batch = Path(rest).parent.as_posix()
    return any(
        batch == PolicyName.parse(n).batch if "seed~" in n else batch.startswith(n.partition("/")[0]) for n in names
    )


def family_names(source: FoundRow, rows: Sequence[Row]) -> frozenset[str]:
    """Return the policies that a source's value depends on: for an adjusted p, all of its family."""
    if source.column not in FAMILY_WIDE or not source.keys.get("family"):
        return source.names
    family = [row for row in rows if row.get("family") == source.keys["family"]]
    return frozenset(name for row in family for name in names_of(row)) | source.names


def _named_by(asked: Asked, known: Iterable[str]) -> tuple[str, ...]:
    """Return the policies or arms that a column's or row's label names, where a table has no groups."""
    if not asked.column:
        return ()
    from lever_pipe.report.tables.policies import label_of

    groups = sorted({group_of(run) for run in known})
    arm = asked.cells.get("Arm", "").strip("`")
    seed = asked.cells.get("Seed", "")
    of_column = re.fullmatch(r"`(\w+)`(?: (\d+))?", asked.column)
    if of_column:
        arm, seed = of_column[1], of_column[2] or ""
    if _agent(arm) in groups:
        return (_agent(arm, seed),)
    return tuple(g for g in groups if _is_policy(g) and label_of(g) == asked.column)


def _agent(arm: str, seed: str | None = None) -> str:
    return str(PolicyName(kind="agent", member=arm, seed=int(seed) if seed else None))


def _is_policy(group: str) -> bool:
    name = PolicyName.parse(group)
    return name.kind == "baseline" or (bool(name.preset) and name.kind != "init")


def _in_file(asked: Asked, name: str, path: Path) -> Iterator[FoundRow]:
    groups = frozenset(asked.groups)
    for i, row in enumerate(read_csv(path)):
        names = names_of(row)
        about = {*names, *map(group_of, names)}
        if groups and names and not is_published(asked) and not groups & about:
            continue
        for column, value in row.items():
            if column not in MEASURES and value and _is_printed_as(value, asked.number):
                keys = {key: text for key, text in row.items() if text and key != column}
                yield FoundRow(name, str(path), i + 1, column, value, keys, names)


def _is_printed_as(value: str, number: str) -> bool:
    """Return whether a value rounds to a printed number."""
    digits = len(number.partition(".")[2])
    try:  # a tie may have been rounded either way
        return abs(abs(Decimal(value)) - abs(Decimal(number))) <= Decimal(5).scaleb(-digits - 1)
    except InvalidOperation:
        return False


def _narrowed(asked: Asked, found: list[FoundRow]) -> list[FoundRow]:
    """Return those that say the same as the cell's row and column about shots, samples, epoch and beta, if any do."""
    shots = _SHOTS.match(asked.column)
    is_mean = asked.column in ("Mean", "Average", "Accuracy")
    pair = frozenset(asked.groups) if len(asked.groups) > 1 else frozenset()
    values = dict(item for group in asked.groups for item in values_in(group).items())
    wishes = [
        ("shots", shots[1] if shots else "mean" if is_mean else asked.cells.get("Shots", "")),
        ("shot", shots[1] if shots else ""),
        ("subset", "prefix"),
        ("samples", asked.cells.get("Samples", "")),
        ("epoch", values.get("epoch", "") or asked.cells.get("Epoch", "")),
        ("kl_beta", values.get("beta", "") or asked.cells.get("KL_BETA", "")),
        ("step", asked.cells.get("Step", "")),
    ]
    for key, value in wishes:
        same = [each for each in found if key not in each.keys or each.keys[key].partition("(")[0] == value]
        found = same if value and same else found
    named = [each for each in found if each.column == COLUMNS.get(asked.column, "")]
    found = named or found
    exact = [each for each in found if pair and each.names == pair]
    found = exact or found
    largest = max((int(each.keys["samples"]) for each in found if each.keys.get("samples", "").isdecimal()), default=0)
    whole = [each for each in found if each.keys.get("samples", str(largest)) == str(largest)]
    return whole if whole and not asked.cells.get("Samples") and not is_published(asked) else found
