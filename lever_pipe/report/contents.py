"""Structure of the report: pages, sections, and the functions that make summaries, tables and facts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lever_pipe.base.errors import RecordError
from lever_pipe.report import claims, setting, sweeps
from lever_pipe.report.agent import answer as agent_answer
from lever_pipe.report.agent import tables as agent
from lever_pipe.report.cells import EvidenceLedger
from lever_pipe.report.comparability import guard
from lever_pipe.report.context import ReportContext
from lever_pipe.report.selector import answer, comparisons, copying, data, documents, emulation, patterns
from lever_pipe.report.summaries import Summary
from lever_pipe.report.table import Table

MAIN = "report"
PAGES: Mapping[str, tuple[str, ...]] = {
    MAIN: ("run", "selector", "agent", "why", "decisive", "limits"),
    "documents-selector": ("000", "001", "002"),
    "documents-agent": ("003", "004"),
    "comparisons": ("comparisons",),
    "sweeps": ("sweeps-selector", "sweeps-agent"),
    "emulation": ("emulation",),
    "claims": ("claims-000", "claims-001", "claims-002", "claims-003", "claims-004"),
    "data": ("data",),
}
"""Sections by page: the main page and the appendix."""
ENGLISH = frozenset(("comparisons", "sweeps", "emulation", "claims", "data"))
"""Pages for engineers, in English only."""

SUMMARIES: Sequence[Callable[[ReportContext], Iterable[Summary]]] = (answer.answers, agent_answer.answers)
TABLES: Sequence[Callable[[ReportContext], Iterable[Table]]] = (
    setting.tables,
    answer.tables,
    copying.tables,
    comparisons.tables,
    patterns.tables,
    emulation.tables,
    documents.tables,
    agent.tables,
    sweeps.tables,
    lambda context: claims.tables(context.claims_of("claims")),
)
FACTS: Mapping[str, Callable[[ReportContext], Any]] = {
    "run": setting.facts,
    "selector": lambda context: {"separated": answer.separated(context), "copying": copying.best_and_base(context)},
    "limits": lambda context: {
        "studies": [study.name for study in context.config.studies],
        "is_world": context.is_world,
        "scoring": data.scoring(context),
    },
    "004": agent.facts,
}
"""Facts for the sentences of a section, which macro `section_ID` of `sentences.html.j2` writes."""


@dataclass(frozen=True, slots=True)
class Contents:
    """Contents of all pages; `ledger` contains each derived number."""

    summaries: tuple[Summary, ...]
    tables: Mapping[str, tuple[Table, ...]]
    facts: Mapping[str, Any]
    ledger: EvidenceLedger


def contents_of(context: ReportContext) -> Contents:
    """Return the contents of a run's pages.

    Raises:
        RecordError: a number refers to a missing row, two tables have the same id, or a section is unknown.
        DataError: `report.guard` is `strict` and our rows differ in more than their table compares.
    """
    ledger = EvidenceLedger(context.evidence)
    summaries = summaries_of(context, ledger)
    names = {section for sections in PAGES.values() for section in sections}
    tables: dict[str, tuple[Table, ...]] = {}
    for table in guard(list(_tables(context)), context.lineages, context.config.guard):
        if table.section not in names:
            do = f"Use one of {', '.join(sorted(names))}."
            raise RecordError(f"table '{table.id}': expected a known section", found=table.section, do=do)
        tables[table.section] = (*tables.get(table.section, ()), table.noted(ledger))
    facts = {section: make(context) or {} for section, make in FACTS.items()}
    # A section without any fact has no sentences.
    sentence_facts = {
        name: ledger.note(fact, f"section/{name}", "facts") for name, fact in facts.items() if any(fact.values())
    }
    return Contents(summaries, tables, sentence_facts, ledger)


def summaries_of(context: ReportContext, ledger: EvidenceLedger) -> tuple[Summary, ...]:
    """Return the summaries after adding their derived numbers to an unused ledger, so that these have fixed lines."""
    return tuple(summary.noted(ledger) for make in SUMMARIES for summary in make(context))


def _tables(context: ReportContext) -> Iterator[Table]:
    """Yield every table that has rows."""
    ids: set[str] = set()
    for table in (table for make in TABLES for table in make(context)):
        # The id names the table's files and its anchor.
        if table.id in ids:
            raise RecordError(f"expected one table '{table.id}'", found="two", do="Rename one of them.")
        ids.add(table.id)
        if len(table.frame):
            yield table
