"""Every table of study `intention`, in reading order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lever_pipe.report.agent import advice, arms, checks, document_003, document_004
from lever_pipe.report.agent.runs import view_of
from lever_pipe.report.material import Material
from lever_pipe.report.table import Table


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


def says(material: Material) -> dict[str, Any] | None:
    """Return what holds of all runs."""
    view = view_of(material)
    return None if view is None else checks.says(view)
