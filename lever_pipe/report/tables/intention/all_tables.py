"""Every table of study `intention`, in reading order."""

from __future__ import annotations

from lever_pipe.report.tables.intention import (
    arm_checks,
    arm_curves,
    arm_runs,
    arm_statistics,
    arms,
    document_003,
    document_004,
)
from lever_pipe.report.tables.intention.shown import Shown
from lever_pipe.report.tables.table import Table


def build_tables(shown: Shown) -> list[Table]:
    """Return the tables of documents 003 and 004, then those of the single-factor study."""
    return [
        *document_003.tables(shown),
        *document_004.tables(shown),
        *arms.tables(shown),
        *arm_curves.tables(shown),
        *arm_statistics.tables(shown),
        arm_curves.noise_table(shown),
        *arm_runs.tables(shown),
        *arm_checks.tables(shown),
    ]
