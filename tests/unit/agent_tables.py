"""Studies of `agent_runs`, collected, compared and tabulated in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import agent_runs
from agent_runs import Study
from claim_files import REFERENCE_INTENTION, book

from lever_pipe.report.tables.frames import read_text_columns
from lever_pipe.report.tables.intention.agent_runs import read_agent_runs
from lever_pipe.report.tables.intention.all_tables import build_tables
from lever_pipe.report.tables.intention.found import read_found
from lever_pipe.report.tables.intention.published import PublishedAgents
from lever_pipe.report.tables.intention.shown import Given, Shown
from lever_pipe.report.tables.table import Table

Rows = list[dict[str, str]]


class Tabulated(NamedTuple):
    """What the tables of a study are made of, and the tables by id."""

    shown: Shown
    tables: Mapping[str, Table]

    def rows(self, name: str, **wanted: str) -> Rows:
        """Return the rows of a table whose cells begin with the wanted texts."""
        rows: Rows = self.tables[name].frame.to_dict("records")  # type: ignore[assignment]
        return [row for row in rows if all(row[key].startswith(text) for key, text in wanted.items())]

    def row(self, name: str, **wanted: str) -> dict[str, str]:
        """Return the only such row."""
        (row,) = self.rows(name, **wanted)
        return row


def tabulate(folder: Path, study: Study, **changes: object) -> Tabulated:
    paths = agent_runs.compare(folder, study)
    given = book().reward_curves
    shown = Shown(
        config=agent_runs.shown_config(study, **changes),
        runs=read_agent_runs(paths["curves"], paths["runs"]),
        found=read_found(paths["endpoints"], paths["comparisons"], paths["statistics"]),
        published=PublishedAgents(read_text_columns(REFERENCE_INTENTION)),
        given=Given(given.ceiling, given.reward_unit, given.noise_sd, given.same_tasks_sd),
    )
    return Tabulated(shown, {table.id: table for table in build_tables(shown)})


class Tabulate(Protocol):
    """Makes the tables of a study; `changes` replace values of the table stage's config."""

    def __call__(self, study: Study, **changes: object) -> Tabulated: ...
