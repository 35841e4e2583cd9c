"""The selector on the main page: every policy at the primary endpoint, and what may be read from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lever_pipe.report.cells import Cell, gap, holm, level, part, say
from lever_pipe.report.evidence import EvidenceRow
from lever_pipe.report.labels import label, reading_order
from lever_pipe.report.material import Material
from lever_pipe.report.selector.answer import ORACLE, Mode, count_separated, modes
from lever_pipe.report.table import Table, TableLine, heads


def tables(material: Material) -> Iterator[Table]:
    """Yield the ladder: each policy's accuracy and its difference to the RCE base, at the primary endpoint."""
    if not material.has("lever") or not material.samples:
        return
    found = modes(material)
    base = (found[-1].base if found else "") or material.main.last_rce or ""
    lines = [line for group in _policies(material, found) if (line := _line(material, group, base))]
    columns = heads("head.policy", "head.accuracy", "head.gain", "head.holm_p", "head.runs")
    title, note = say("selector.ladder", n=max(material.samples)), say("selector.ladder_note")
    yield Table("ladder", "selector", title, columns, tuple(lines), notes=(note,)).without_empty_columns()


def texts(material: Material) -> Iterator[tuple[str, Cell]]:
    """Yield how many settings of each mode are separated from RCE, and how the modes differ."""
    if not material.has("lever"):
        return
    found = modes(material)
    for mode in found:
        rows = [row for name in mode.groups.values() if (row := _against(material, name, mode.base)) is not None]
        if rows:
            ordered = sorted(rows, key=lambda row: row.value)
            yield (
                "selector",
                say(
                    "selector.separated",
                    mode=say(f"mode.{mode.name}"),
                    apart=count_separated(rows),
                    tested=len(rows),
                    low=gap(ordered[0], 2).plain,  # type: ignore[union-attr]
                    high=gap(ordered[-1], 2).plain,  # type: ignore[union-attr]
                ),
            )


def _policies(material: Material, found: Sequence[Mode]) -> Iterator[str]:
    yield from reading_order([name for name in material.baselines if name != ORACLE])
    yield material.main.last_rce or ""
    for mode in found:
        yield from (mode.over, *mode.groups.values())
    yield from material.main.beside
    yield ORACLE


def _line(material: Material, group: str, base: str) -> TableLine | None:
    row, difference = material.accuracy(group), _against(material, group, base)
    if row is None and difference is None:
        return None
    runs = part(row or difference, "runs", 0)
    return TableLine(
        (label(group, with_epoch=False), level(row, 1), gap(difference, 2), holm(difference), runs), groups=(group,)
    )


def _against(material: Material, group: str, base: str) -> EvidenceRow | None:
    return material.compared(group, base, samples=max(material.samples, default=0))
