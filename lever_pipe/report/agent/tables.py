"""Every table and sentence of study `intention`, in reading order."""

from __future__ import annotations

from collections.abc import Iterator

from lever_pipe.report.agent import advice, arms, checks, curves, document_003, document_004
from lever_pipe.report.agent.runs import view_of
from lever_pipe.report.cells import Cell
from lever_pipe.report.material import Material
from lever_pipe.report.table import Table


def tables(material: Material) -> Iterator[Table]:
    """Yield the tables of documents 003 and 004, where the documents' two arms ran, and of all arms; none of none."""
    view = view_of(material)
    if view is None:
        return
    if view.has_pair:
        yield from document_003.tables(view)
        yield from document_004.tables(view)
        yield from advice.tables(view)
    yield from arms.tables(view)
    yield from curves.tables(view)


def texts(material: Material) -> Iterator[tuple[str, Cell]]:
    """Yield what holds of all runs, with the section that says it."""
    view = view_of(material)
    yield from (("004", text) for text in (checks.texts(view) if view is not None else ()))
