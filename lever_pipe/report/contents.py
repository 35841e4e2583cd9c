"""What stands where: the pages, their sections, and who makes their cards, tables and what their sentences need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lever_pipe.base.errors import RecordError
from lever_pipe.report import claims, setting, sweeps
from lever_pipe.report.agent import answer as agent_answer
from lever_pipe.report.agent import tables as agent
from lever_pipe.report.cards import Card
from lever_pipe.report.cells import EvidenceLedger
from lever_pipe.report.comparability import guard
from lever_pipe.report.material import Material
from lever_pipe.report.selector import answer, comparisons, copying, documents, emulation, patterns
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
"""Sections by page: the main one and the appendix."""
TITLES: Mapping[str, tuple[str, str]] = {
    "documents-selector": (
        "Documents 000, 001 and 002",
        "Every table of the documents about KL_BETA, filled from this run; a published number stands below ours.",
    ),
    "documents-agent": (
        "Documents 003 and 004",
        "Every table of the documents about the agent, filled from this run, beside the published numbers.",
    ),
    "comparisons": (
        "All comparisons",
        "Every tested difference with its interval and Holm p, other presets, and the on-policy runs.",
    ),
    "sweeps": (
        "Sweeps",
        "Values of an arm's keys, each combination an arm of its own; none of them stands on another page.",
    ),
    "emulation": (
        "Emulated faults",
        (
            "These runs repeat faults of the published study on purpose. On other pages only the table of "
            "published patterns shows their numbers."
        ),
    ),
    "claims": ("All claims", "What the documents claim, recomputed."),
    "data": ("Data", "The data, and every hyper-parameter."),
}
"""Title and lead of each page of the appendix."""
SECTIONS: Mapping[str, tuple[str, str]] = {
    "run": ("What this run is", ""),
    "selector": (
        "The selector",
        (
            "A pointer network chooses demonstrations for a visual question; a frozen vision-language model "
            "answers with them in its prompt. It learns by reward-weighted cross-entropy (RCE), then by GRPO "
            "with a KL penalty of weight KL_BETA."
        ),
    ),
    "agent": (
        "The agent",
        (
            "A language model asks its user for what a vague request leaves out; each detail that it uncovers "
            "earns a reward. It is trained by GRPO with and without a KL loss."
        ),
    ),
    "why": (
        "Why the published tables look as they do",
        (
            "Faults of the published study are switched on one at a time; a pattern counts as explained where "
            "its fault alone brings it about."
        ),
    ),
    "decisive": ("Ten claims", ""),
    "limits": ("Limits and method", ""),
    "000": ("Document 000: first training curves", ""),
    "001": ("Document 001: KL_BETA and accuracy", ""),
    "002": ("Document 002: three KL_BETA", ""),
    "003": ("Document 003: GRPO with and without a KL loss", ""),
    "004": ("Document 004: what the KL loss does to training", ""),
    "comparisons": ("Every comparison", ""),
    "sweeps-selector": ("Sweeps of the selector", ""),
    "sweeps-agent": ("Sweeps of the agent", ""),
    "emulation": ("The faults and what they do", ""),
    "claims-000": ("Document 000", ""),
    "claims-001": ("Document 001", ""),
    "claims-002": ("Document 002", ""),
    "claims-003": ("Document 003", ""),
    "claims-004": ("Document 004", ""),
    "data": ("What the run used", ""),
}
"""Title of each section, and what is said first in it."""
ENGLISH = frozenset(("comparisons", "sweeps", "emulation", "claims", "data"))
"""Pages that only engineers read: they have no other language."""

CARDS: Sequence[Callable[[Material], Iterable[Card]]] = (answer.answers, agent_answer.answers)
TABLES: Sequence[Callable[[Material], Iterable[Table]]] = (
    setting.tables,
    answer.tables,
    copying.tables,
    comparisons.tables,
    patterns.tables,
    emulation.tables,
    documents.tables,
    agent.tables,
    sweeps.tables,
    claims.tables,
)
SAID: Mapping[str, Callable[[Material], Any]] = {
    "run": setting.told,
    "selector": lambda material: {"separated": answer.separated(material), "copying": copying.best_and_base(material)},
    "limits": lambda material: {
        "studies": [study.name for study in material.config.studies],
        "is_world": material.is_world,
    },
    "004": agent.told,
}
"""What the sentences of a section need, which `sentences.html.j2` writes in `section_ID`."""


@dataclass(frozen=True, slots=True)
class Contents:
    """Everything that the pages say, with each derived number noted in `ledger`."""

    cards: tuple[Card, ...]
    tables: Mapping[str, tuple[Table, ...]]
    said: Mapping[str, Any]
    ledger: EvidenceLedger


def contents_of(material: Material) -> Contents:
    """Return what the pages of a run say.

    Raises:
        RecordError: a number refers to a row that is missing, a table's id stands twice, or a section is unknown.
        ComparisonError: `report.guard` is `strict` and lines of ours differ in more than their table compares.
    """
    ledger = EvidenceLedger(material.evidence)
    cards = tuple(card.noted(ledger) for make in CARDS for card in make(material))
    known = {section for sections in PAGES.values() for section in sections}
    tables: dict[str, tuple[Table, ...]] = {}
    for table in guard(list(_tables(material)), material.lineages, material.config.guard):
        if table.section not in known:
            do = f"Use one of {', '.join(sorted(known))}."
            raise RecordError(f"table '{table.id}': expected a known section", found=table.section, do=do)
        tables[table.section] = (*tables.get(table.section, ()), table.noted(ledger))
    found = {section: make(material) for section, make in SAID.items()}
    said = {name: ledger.note(of, f"section/{name}", "says") for name, of in found.items() if of and any(of.values())}
    return Contents(cards, tables, said, ledger)


def _tables(material: Material) -> Iterator[Table]:
    """Yield every table with a line."""
    seen: set[str] = set()
    for table in (found for make in TABLES for found in make(material)):
        if table.id in seen:
            raise RecordError(f"expected one table '{table.id}'", found="two", do="Rename one of them.")
        seen.add(table.id)
        if len(table.frame):
            yield table
