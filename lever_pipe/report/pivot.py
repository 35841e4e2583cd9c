"""Plain tables, declared: what stands in rows and columns of the evidence, in `resources/tables/AREA.yaml`.

A declaration names axes (`beta`, `epoch`, `samples`, `shots`, `step`, `arm`, ...). `tables` makes one table a value of
an axis, `lines` one line, a column's `each` one column. Templates of subjects are filled with the values at hand,
`preset~{preset}/grpo/base~{base}/beta~{beta}/epoch~{epoch}`. Of a declared value that no row has the line, column or
table is left out and a note says so; `all` stands for every value that the run has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError

from lever_pipe.base.errors import RecordError
from lever_pipe.base.sections import Section
from lever_pipe.report.cells import Cell, Name, Number, average, gap, holm, level, minus, part, say
from lever_pipe.report.evidence import Evidence, EvidenceRow
from lever_pipe.report.table import Column, Table, TableLine, Whose

Values = Mapping[str, Any]
"""Value by axis."""
Axis = tuple[float | int | str, ...] | Literal["all"]


class ColumnSpec(Section):
    """Columns of one metric; `where` and the templates in it are filled with the values at hand.

    `published` says what stands in a published line: the same quantity, the mean of the columns `mean_of`, a difference
    to the same column at other values of the axes (`less`), or nothing.
    """

    head: str
    metric: str = ""
    where: dict[str, str | int | float] = Field({})
    each: dict[str, Axis] = Field({})
    show: Literal["level", "gap", "holm", "detectable", "p", "axis"] = "level"
    digits: int = 2
    scale: float = 1.0
    published: Literal["same", "mean", "less", "none"] = "same"
    less: dict[str, float | int | str] = Field({})
    """Values of the axes of the line that the published difference subtracts."""
    mean_over: str = ""
    """Axis over whose values a published mean is taken."""


class TableSpec(Section):
    """One declaration, of one or more tables."""

    id: str
    section: str
    title: str
    factor: str = ""
    tables: dict[str, Axis] = Field({})
    lines: dict[str, Axis] = Field(min_length=1)
    line_heads: tuple[str, ...] = Field(min_length=1)
    """Heads of the leading columns, one an axis of the lines."""
    study: Literal["lever", "intention"] = "lever"
    ours: str
    published: str = ""
    quoted: tuple[str, ...] = ()
    """Files of the reference whose numbers count, the first that has one."""
    columns: tuple[ColumnSpec, ...] = Field(min_length=1)
    notes: tuple[str, ...] = ()


def read_specs(path: Path) -> list[TableSpec]:
    """Return the declared tables of a file.

    Raises:
        RecordError: a missing or malformed file.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        return [TableSpec.model_validate(value) for value in values]
    except FileNotFoundError:
        raise RecordError(f"{path}: expected declared tables", found="none", do="Restore it.") from None
    except (yaml.YAMLError, TypeError, ValidationError) as fault:
        raise RecordError(f"{path}: expected declared tables", found=str(fault), do="Mend the entry.") from None


def declared(
    specs: Sequence[TableSpec], evidence: Evidence, axes: Mapping[str, Sequence[Any]], given: Values
) -> Iterator[Table]:
    """Yield every declared table that has a line of ours.

    Args:
        specs: the declarations.
        evidence: what they show.
        axes: the values that this run has, by axis.
        given: values that every template may use, such as `preset` and `base`.
    """
    for spec in specs:
        for chosen in _combinations(spec.tables, axes):
            table = _Pivot(spec, evidence, axes, {**given, **chosen}).table(chosen)
            if table.lines:
                yield table.without_empty_columns()


class _Pivot:
    """One table while it is made."""

    def __init__(self, spec: TableSpec, evidence: Evidence, axes: Mapping[str, Sequence[Any]], values: Values) -> None:
        self.spec, self.evidence, self.axes, self.values = spec, evidence, axes, values

    def table(self, chosen: Values) -> Table:
        places = list(_combinations(self.spec.lines, self.axes))
        lines = [line for at in places for line in self._pair(at)]
        heads = [Column(say(head), "name") for head in self.spec.line_heads]
        if self.spec.published:
            heads.append(Column(say("head.source"), "name"))
        heads += [Column(self._head(column, at)) for column in self.spec.columns for at in self._each(column)]
        absent = [
            note
            for axis, wanted in {**self.spec.lines, **self.spec.tables}.items()
            if (note := self._missing(axis, wanted))
        ]
        return Table(
            id=_filled(self.spec.id, chosen),
            section=self.spec.section,
            title=say(self.spec.title, **{name: as_axis(value) for name, value in self.values.items()}),
            columns=tuple(heads),
            lines=tuple(lines),
            notes=(*map(say, self.spec.notes), *absent),
            factor=self.spec.factor,
        )

    def _pair(self, at: Values) -> Iterator[TableLine]:
        """Yield the line of ours and, where anything was published, one below it; nothing without ours."""
        names = tuple(as_axis(at[axis]) for axis in self.spec.lines)
        ours = [self._ours(column, {**at, **each}) for column in self.spec.columns for each in self._each(column)]
        if not any(cell is not None for cell in ours):
            return
        sides: list[tuple[Whose, list[Cell], str]] = [("ours", ours, self.spec.ours)]
        if self.spec.published:
            theirs = [
                self._theirs(column, {**at, **each}) for column in self.spec.columns for each in self._each(column)
            ]
            sides += [("published", theirs, self.spec.published)] if any(cell is not None for cell in theirs) else []
        for whose, cells, subject in sides:
            source: tuple[Cell, ...] = (say(f"word.{whose}"),) if self.spec.published else ()
            group = _filled(subject, {**self.values, **at})
            yield TableLine((*names, *source, *cells), whose, (group,))

    def _ours(self, column: ColumnSpec, at: Values) -> Cell:
        row = self._row(column, at, self.spec.ours)
        match column.show:
            case "level":
                return level(row, column.digits, scale=column.scale)
            case "gap":
                return gap(row, column.digits, scale=column.scale)
            case "holm":
                return holm(row)
            case "detectable" | "p":
                return part(row, column.show, column.digits, scale=column.scale)
            case "axis":
                return None

    def _theirs(self, column: ColumnSpec, at: Values) -> Cell:
        match column.published:
            case "none":
                return None
            case "same":
                return self._printed(column, at)
            case "mean":
                return self._mean(column, at)
            case "less" if all(at.get(axis) == value for axis, value in column.less.items()):
                return None
            case "less":
                return minus(self._mean(column, at), self._mean(column, {**at, **column.less}))

    def _mean(self, column: ColumnSpec, at: Values) -> Number | None:
        over = column.mean_over
        return average([self._printed(column, {**at, over: value}) for value in self.axes.get(over, ())], column.digits)

    def _printed(self, column: ColumnSpec, at: Values) -> Number | None:
        for file in self.spec.quoted:
            row = self._row(column, at, self.spec.published, quoted=file)
            if row is not None:
                return level(row, column.digits, scale=column.scale)
        return None

    def _row(self, column: ColumnSpec, at: Values, subject: str, quoted: str = "") -> EvidenceRow | None:
        values = {**self.values, **at}
        where = {name: _filled(str(value), values) for name, value in column.where.items()}
        if quoted:
            where = {"quoted": quoted} | {name: where[name] for name in ("at", "samples", "shots") if name in where}
            if column.mean_over in at:
                where[column.mean_over] = str(at[column.mean_over])
        return self.evidence.find(
            _filled(subject, values), _filled(column.metric, values), study=self.spec.study, **where
        )

    def _each(self, column: ColumnSpec) -> list[Values]:
        return list(_combinations(column.each, self.axes)) if column.each else [{}]

    def _head(self, column: ColumnSpec, at: Values) -> Cell:
        return say(column.head, **{name: as_axis(value) for name, value in {**self.values, **at}.items()})

    def _missing(self, axis: str, wanted: Axis) -> Cell:
        absent = [value for value in wanted if value not in self.axes.get(axis, ())] if wanted != "all" else []
        return say(f"note.without.{axis}", values=absent) if absent else None


def as_axis(value: Any) -> Cell:
    """Return a value of an axis as a cell; a decoding has a name in words."""
    if value in ("greedy", "sampled"):
        return say(f"agent.{value}")
    return Name(f"{value:g}" if isinstance(value, float) else str(value))


def _combinations(wanted: Mapping[str, Axis], axes: Mapping[str, Sequence[Any]]) -> Iterator[Values]:
    """Yield every combination of the wanted values that the run has."""
    kept = []
    for axis, values in wanted.items():
        known = axes.get(axis, ())
        kept.append(list(known) if values == "all" else [value for value in values if value in known])
    for values in product(*kept):
        yield dict(zip(wanted, values, strict=True))


def _filled(template: str, values: Values) -> str:
    texts = {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in values.items()}
    try:
        return template.format(**texts)
    except KeyError as fault:
        raise RecordError(
            f"{template}: expected only axes at hand", found=str(fault), do=f"Use one of {', '.join(sorted(texts))}."
        ) from None
