"""Summaries on the first screen: each has an answer, a small plot, and links to the details."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from lever_pipe.report.cells import Cell, Estimate, EvidenceLedger, Message

MarkKind: TypeAlias = Literal["a", "b", "muted"]
"""Series of a dot: one of two, or `muted` for a value to compare with."""


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """A row of a summary's plot: its label, and a dot with an interval for each mark."""

    label: Cell
    marks: tuple[tuple[MarkKind, Estimate], ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """A question with its answer.

    Attributes:
        id: names its derived numbers in the evidence, and its macros `answer_ID` and `notes_ID`.
        title: the question.
        facts: arguments for its sentences in `sentences.html.j2`.
        rows: of the plot; without rows there is no plot.
        axis: quantity of the plot's axis, with its unit.
        links: targets and their texts.
        keys: legend of the marks `a` and `b`, if the plot has both.
    """

    id: str
    title: Message
    facts: dict[str, Any]
    rows: tuple[SummaryRow, ...]
    axis: Message | None
    links: tuple[tuple[str, Message], ...]
    keys: tuple[tuple[MarkKind, Message], ...] = ()

    def noted(self, ledger: EvidenceLedger) -> Summary:
        """Return the summary after adding every derived number to the evidence, under `summary/ID`.

        Raises:
            RecordError: a number refers to a missing row.
        """
        subject = f"summary/{self.id}"
        rows = []
        for i, row in enumerate(self.rows, start=1):
            marks = ((kind, ledger.note(number, subject, f"row{i}.{j}")) for j, (kind, number) in enumerate(row.marks))
            rows.append(replace(row, marks=tuple(marks)))
        return replace(self, rows=tuple(rows), facts=ledger.note(self.facts, subject, "facts"))
