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

from pydantic import Field, ValidationError

from lever_pipe.base.errors import RecordError
from lever_pipe.base.sections import Section
from lever_pipe.base.storage import read_yaml
from lever_pipe.report.cells import Cell, Name, Number, average, gap, holm, level, minus, say
from lever_pipe.report.evidence import Evidence, EvidenceRow
from lever_pipe.report.table import Column, Table, TableLine, beside

Values = Mapping[str, Any]
"""Value by axis."""
Axis = tuple[float | int | str, ...] | Literal["all"]


class ColumnSpec(Section):
    """Columns of one metric; `where` and the templates in it are filled with the values at hand.

    `published` says what stands in a published line: the same quantity, the mean of the columns `mean_of`, a difference
    to the same column at other values of the axes (`less`), or nothing.
    """

    head: str
    metric: str
    where: dict[str, str | int | float] = Field({})
    each: dict[str, Axis] = Field({})
    show: Literal["level", "gap", "holm"] = "level"
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
        return [TableSpec.model_validate(value) for value in read_yaml(path, "declared tables")]
    except (TypeError, ValidationError) as fault:
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
        self.columns = [(column, at) for column in spec.columns for at in _combinations(column.each, axes)]

    def table(self, chosen: Values) -> Table:
        spec, heads = self.spec, (*self.spec.line_heads, *(("head.source",) if self.spec.published else ()))
        absent = (self._missing(axis, wanted) for axis, wanted in {**spec.lines, **spec.tables}.items())
        return Table(
            id=_filled(spec.id, chosen),
            section=spec.section,
            title=self._say(spec.title),
            columns=(
                *(Column(say(head), "name") for head in heads),
                *(Column(self._say(column.head, at)) for column, at in self.columns),
            ),
            lines=tuple(line for at in _combinations(spec.lines, self.axes) for line in self._lines(at)),
            notes=(*map(say, spec.notes), *(note for note in absent if note)),
            factor=spec.factor,
        )

    def _say(self, message: str, at: Values | None = None) -> Cell:
        return say(message, **{name: as_axis(value) for name, value in {**self.values, **(at or {})}.items()})

    def _lines(self, at: Values) -> Iterator[TableLine]:
        """Yield the line of ours and, where anything was published, one below it; nothing without ours."""
        names = tuple(as_axis(at[axis]) for axis in self.spec.lines)
        ours = [self._ours(column, {**at, **each}) for column, each in self.columns]
        if not any(cell is not None for cell in ours):
            return
        sides = (self.spec.ours, self.spec.published)
        left, right = ((_filled(subject, {**self.values, **at}),) for subject in sides)
        if self.spec.published:
            theirs = [self._theirs(column, {**at, **each}) for column, each in self.columns]
            yield from beside(names, ours, theirs, (left, right))
        else:
            yield TableLine((*names, *ours), "ours", left)

    def _ours(self, column: ColumnSpec, at: Values) -> Cell:
        row = self._row(column, at, self.spec.ours)
        match column.show:
            case "level":
                return level(row, column.digits, scale=column.scale)
            case "gap":
                return gap(row, column.digits, scale=column.scale)
            case "holm":
                return holm(row)

    def _theirs(self, column: ColumnSpec, at: Values) -> Cell:
        match column.published:
            case "none":
                return None
            case "same":
                return self._printed(column, at)
            case "mean":
                return self._mean(column, at)
            case "less":
                is_same = all(at.get(axis) == value for axis, value in column.less.items())
                return None if is_same else minus(self._mean(column, at), self._mean(column, {**at, **column.less}))

    def _mean(self, column: ColumnSpec, at: Values) -> Number | None:
        over = column.mean_over
        return average([self._printed(column, {**at, over: value}) for value in self.axes.get(over, ())], column.digits)

    def _printed(self, column: ColumnSpec, at: Values) -> Number | None:
        rows = (self._row(column, at, self.spec.published, quoted=file) for file in self.spec.quoted)
        return level(next((row for row in rows if row is not None), None), column.digits, scale=column.scale)

    def _row(self, column: ColumnSpec, at: Values, subject: str, quoted: str = "") -> EvidenceRow | None:
        values = {**self.values, **at}
        where = {name: _filled(str(value), values) for name, value in column.where.items()}
        if quoted:
            where = {"quoted": quoted} | {name: where[name] for name in ("at", "samples", "shots") if name in where}
            if column.mean_over in at:
                where[column.mean_over] = str(at[column.mean_over])
        place = _filled(subject, values), _filled(column.metric, values)
        return self.evidence.find(*place, study=self.spec.study, **where)

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
