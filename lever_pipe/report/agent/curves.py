"""What every arm and run shows beside document 004: rewards by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lever_pipe.report.agent.runs import MODES, REWARD_DIGITS, STUDY, AgentView, table_of
from lever_pipe.report.cells import Cell, level, say
from lever_pipe.report.table import Column, Table, TableLine

SECTION = "004"


def tables(view: AgentView) -> Iterator[Table]:
    """Yield the tables that have a line."""
    yield from (table for mode in MODES if (table := _rewards(view, mode)).lines)


def _rewards(view: AgentView, mode: str) -> Table:
    validations = view.evidence.where(metric="reward", study=STUDY, subset="val")
    steps = sorted({int(row.at) for row in validations if row.at.isdigit()})

    def cells(subject: str) -> Iterator[Cell]:
        for step in steps:
            yield level(view.find(subject, "reward", at=step, subset="val", mode=mode), REWARD_DIGITS)

    lines = (line for arm in view.arms for line in _line((arm.name,), cells(f"arm~{arm.name}")))
    columns: tuple[str | Column, ...] = (
        "arm",
        *(Column(say("Step {step}", step=str(step))) for step in steps),
    )
    title = say("Validation reward of every arm by step, {mode}", mode=say(mode))
    return table_of(f"agent-rewards-{mode}", title, columns, lines, section=SECTION)


def _line(names: Sequence[Cell], cells: Iterator[Cell]) -> Iterator[TableLine]:
    """Yield the line of an arm or run, where it has a number."""
    found = tuple(cells)
    if any(cell is not None for cell in found):
        yield TableLine((*names, *found))
