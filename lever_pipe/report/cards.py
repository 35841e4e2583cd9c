"""An answer in the first screen: a question, one sentence, a small plot, and where it rests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from lever_pipe.report.cells import Cell, Estimate, EvidenceLedger, Message

MarkKind: TypeAlias = Literal["a", "b", "muted"]
"""Which of two series a dot belongs to, or that it is there to compare with."""


@dataclass(frozen=True, slots=True)
class CardRow:
    """A row of a card's plot: its label, and a dot with an interval for each mark."""

    label: Cell
    marks: tuple[tuple[MarkKind, Estimate], ...]


@dataclass(frozen=True, slots=True)
class Card:
    """One answer.

    Attributes:
        id: names its derived numbers in the evidence.
        title: the question.
        headline: the answer, strong.
        detail: what goes with it, in the same sentence or behind it.
        rows: of the plot; none draws none.
        axis: what the plot's axis measures, with its unit.
        notes: what the answer rests on, and why it says no more.
        links: targets and their texts.
        keys: what the marks `a` and `b` are, where both are drawn.
    """

    id: str
    title: Message
    headline: Cell
    detail: Cell
    rows: tuple[CardRow, ...]
    axis: Message | None
    notes: Cell
    links: tuple[tuple[str, Message], ...]
    keys: tuple[tuple[MarkKind, Message], ...] = ()

    def noted(self, ledger: EvidenceLedger) -> Card:
        """Return the card with every derived number in the evidence, under `card/ID`.

        Raises:
            RecordError: a number refers to a row that is missing.
        """
        at = f"card/{self.id}"
        rows = tuple(
            CardRow(
                ledger.note(row.label, at, f"row{i}.label"),
                tuple((kind, ledger.note(number, at, f"row{i}.{j}")) for j, (kind, number) in enumerate(row.marks)),  # type: ignore[misc]
            )
            for i, row in enumerate(self.rows, start=1)
        )
        told = {name: ledger.note(getattr(self, name), at, name) for name in ("headline", "detail", "notes")}
        return replace(self, rows=rows, **told)  # type: ignore[arg-type]
