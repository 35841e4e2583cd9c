"""Every table of study `intention`, in reading order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lever_pipe.report.agent import advice, arms, checks, document_003, document_004
from lever_pipe.report.agent.runs import MODES, REWARD_DIGITS, STUDY, AgentView, view_of
from lever_pipe.report.cells import level, say
from lever_pipe.report.material import Material
from lever_pipe.report.table import Row, Table, framed


def tables(material: Material) -> Iterator[Table]:
    """Yield the tables of documents 003 and 004, where the documents' two arms ran, and of all arms; none of none."""
    view = view_of(material)
    if view is None:
        return
    if set(view.pair.values()) <= set(view.seeds):
        yield from document_003.tables(view)
        yield from document_004.tables(view)
        yield from advice.tables(view)
    yield from arms.tables(view)
    for mode in MODES:
        title = say("Validation reward of every arm by step, {mode}", mode=mode)
        yield Table(f"agent-rewards-{mode}", "004", title, framed(_rewards(view, mode)))


def _rewards(view: AgentView, mode: str) -> Iterator[Row]:
    rows = view.evidence.where(metric="reward", study=STUDY, subset="val")
    heads = {
        step: say("Step {step}", step=str(step)) for step in sorted({int(row.at) for row in rows if row.at.isdigit()})
    }
    for arm in (arm.name for arm in view.arms):
        by_step = {step: view.find(f"arm~{arm}", "reward", at=step, subset="val", mode=mode) for step in heads}
        if any(by_step.values()):
            yield {"Arm": arm, **{heads[step]: level(row, REWARD_DIGITS) for step, row in by_step.items()}}


def says(material: Material) -> dict[str, Any] | None:
    """Return what holds of all runs."""
    view = view_of(material)
    return None if view is None else checks.says(view)
