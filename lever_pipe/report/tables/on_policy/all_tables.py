"""Every table of section `on_policy`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pandas as pd

from lever_pipe.report.tables.on_policy.betas import betas_table
from lever_pipe.report.tables.on_policy.cells import cells_table
from lever_pipe.report.tables.on_policy.cost import cost_table
from lever_pipe.report.tables.on_policy.gains import by_shots_table, gains_table
from lever_pipe.report.tables.on_policy.marks import differences_table, marks_table
from lever_pipe.report.tables.on_policy.study import PresetRuns
from lever_pipe.report.tables.on_policy.ties import drawn_table, stored_table
from lever_pipe.report.tables.origin import Origin
from lever_pipe.report.tables.table import Table
from lever_pipe.report.tables.text import sentences


def tables(studies: Sequence[PresetRuns], ties: pd.DataFrame, origin: Origin) -> list[Table]:
    """Return the tables of every preset with on-policy runs, each caption beginning with where its numbers come from.

    The stored groups belong to every preset, so their table stands once.

    Args:
        studies: one a preset.
        ties: `ties.csv` as text.
        origin: whose numbers these are.
    """
    found = [replace(origin, main_preset=study.preset).named(table) for study in studies for table in _of(study)]
    stored = stored_table(ties)
    found.append(replace(stored, caption=sentences(origin.sentence([]), stored.caption)))
    return [table for table in found if len(table.frame)]


def _of(study: PresetRuns) -> Iterator[Table]:
    yield gains_table(study)
    yield betas_table(study)
    yield marks_table(study)
    differences = differences_table(study)
    if differences is not None:
        yield differences
    yield cost_table(study)
    yield drawn_table(study)
    yield by_shots_table(study)
    yield cells_table(study)
