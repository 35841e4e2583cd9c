"""Every table of study `intention`, in reading order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from lever_pipe.report.agent import arms, document_003, document_004
from lever_pipe.report.agent.runs import view_of
from lever_pipe.report.cells import derived
from lever_pipe.report.context import ReportContext
from lever_pipe.report.table import Table

LOST = {"failures": "simulator_failures", "timeouts": "environment_timeouts"}
"""Metrics that count lost episodes."""


def tables(context: ReportContext) -> Iterator[Table]:
    """Yield the tables of documents 003 and 004, if the documents' two arms ran, and then the table of all arms."""
    view = view_of(context)
    if view is None:
        return
    if set(view.pair.values()) <= set(view.seeds):
        yield from document_003.tables(view)
        yield from document_004.tables(view)
    yield from arms.tables(view)


def facts(context: ReportContext) -> dict[str, Any] | None:
    """Return the number of failures of simulator and environment in training, over all runs."""
    view, counts = view_of(context), dict[str, Any]()
    if view is None:
        return None
    for name, metric in LOST.items():
        rows = [view.find(f"arm~{arm.name}", metric, at="sum", subset="train") for arm in view.arms]
        measured = [row for row in rows if row is not None]
        total = math.fsum(row.runs * row.value for row in measured) if measured else math.nan
        counts[name] = derived(total, 0, measured, "sum over runs")
    return counts
