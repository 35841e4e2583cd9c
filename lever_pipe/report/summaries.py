"""An answer in the first screen: what it says, a small plot, and where it rests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from lever_pipe.report.cells import Cell, Estimate, EvidenceLedger, Message

MarkKind: TypeAlias = Literal["a", "b", "muted"]
"""Which of two series a dot belongs to, or that it is there to compare with."""


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """A row of a summary's plot: its label, and a dot with an interval for each mark."""

    label: Cell
    marks: tuple[tuple[MarkKind, Estimate], ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """One answer.

    Attributes:
        id: names its derived numbers in the evidence, and what writes it: `answer_ID` and `notes_ID`.
        title: the question.
        facts: what `sentences.html.j2` needs for its sentences.
        rows: of the plot; none draws none.
        axis: what the plot's axis measures, with its unit.
        links: targets and their texts.
        keys: what the marks `a` and `b` are, where both are drawn.
    """

    id: str
    title: Message
    facts: dict[str, Any]
    rows: tuple[SummaryRow, ...]
    axis: Message | None
    links: tuple[tuple[str, Message], ...]
    keys: tuple[tuple[MarkKind, Message], ...] = ()

    def noted(self, ledger: EvidenceLedger) -> Summary:
        """Return the summary with every derived number in the evidence, under `summary/ID`.

        Raises:
            RecordError: a number refers to a row that is missing.
        """
        subject = f"summary/{self.id}"
        rows = []
        for i, row in enumerate(self.rows, start=1):
            marks = ((kind, ledger.note(number, subject, f"row{i}.{j}")) for j, (kind, number) in enumerate(row.marks))
            rows.append(replace(row, marks=tuple(marks)))
        return replace(self, rows=tuple(rows), facts=ledger.note(self.facts, subject, "facts"))
