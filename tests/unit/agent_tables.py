"""Studies of `agent_runs` as evidence, and the tables and summary that are made of it, in words."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import agent_runs
import sentences
from agent_runs import Study
from claim_files import REFERENCE_INTENTION, book

from lever_pipe.report import sources
from lever_pipe.report.agent.answer import answers
from lever_pipe.report.agent.runs import AgentView, view_of
from lever_pipe.report.agent.tables import tables
from lever_pipe.report.catalogue import Translator, read_translation
from lever_pipe.report.cells import EvidenceLedger
from lever_pipe.report.checks import evaluate_claims
from lever_pipe.report.context import ReportContext
from lever_pipe.report.evidence import Evidence, EvidenceRow
from lever_pipe.report.summaries import Summary
from lever_pipe.report.table import Table, as_csv

RESOURCES = Path(__file__).parents[2] / "resources"
CHINESE = read_translation(RESOURCES / "locale/zh/LC_MESSAGES/report.po")
TRANSLATORS = {"en": Translator("en"), "zh": Translator("zh", CHINESE)}
ENGLISH = TRANSLATORS["en"].text
Rows = list[dict[str, str]]


class Tabulated:
    """The inputs of a study's tables, the tables by id with every number noted, and the summary."""

    def __init__(self, context: ReportContext) -> None:
        self.context, self.ledger = context, EvidenceLedger(context.evidence)

    @cached_property
    def tables(self) -> dict[str, Table]:
        return {table.id: table.noted(self.ledger) for table in tables(self.context)}

    @cached_property
    def summary(self) -> Summary | None:
        return next((summary.noted(self.ledger) for summary in answers(self.context)), None)

    @property
    def view(self) -> AgentView:
        found = view_of(self.context)
        assert found is not None
        return found

    def rows(self, name: str, **wanted: str) -> Rows:
        """Return the rows of a table in English whose cells begin with the wanted texts."""
        rows = csv.DictReader(io.StringIO(as_csv(self.tables[name], TRANSLATORS["en"])))
        return [row for row in rows if all(row[key].startswith(text) for key, text in wanted.items())]

    def row(self, name: str, **wanted: str) -> dict[str, str]:
        """Return the only such row."""
        (row,) = self.rows(name, **wanted)
        return row

    def messages(self, name: str) -> str:
        """Return lead and notes of a table in English."""
        return sentences.messages(self.tables[name])


Tabulate = Callable[..., Tabulated]
"""Runs a study and makes its tables; further arguments as `displayed_config` takes them."""


def evidence_of(folder: Path, study: Study, **changes: object) -> list[EvidenceRow]:
    """Return the rows of a study that ran, and the published ones; `changes` are of `compare_arms`."""
    paths = agent_runs.compare(folder, study, **changes)
    return [
        *sources.endpoints(paths["endpoints"]),
        *sources.arm_comparisons(paths["comparisons"]),
        *sources.curves(paths["curves"]),
        *sources.runs(paths["runs"]),
        *sources.published_agents(REFERENCE_INTENTION),
    ]


def tabulate(rows: list[EvidenceRow], study: Study, **changes: object) -> Tabulated:
    """Return the tables of evidence; `changes` replace values of the report's arms.

    Claims are evaluated if the study has the documents' arm.
    """
    found = ReportContext(Evidence(rows), agent_runs.displayed_config(study, **changes))
    has_documents = any(arm.name == "bundle" for arm in study.arms)
    return Tabulated(replace(found, claims=evaluate_claims(book(), found)) if has_documents else found)
