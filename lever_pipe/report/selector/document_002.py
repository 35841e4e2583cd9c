"""Conclusions of document 002 from its accuracies: differences with their trend, and a summary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise, product
from math import isnan

from lever_pipe.report.cells import (
    Cell,
    Estimate,
    Message,
    average,
    derived,
    gap,
    holm,
    level,
    message,
    minus,
    verdict,
)
from lever_pipe.report.context import ReportContext
from lever_pipe.report.evidence import MEAN, EvidenceRow
from lever_pipe.report.format import number_text
from lever_pipe.report.reference import FILES, published_run, quoted
from lever_pipe.report.table import Row, Table, framed, paired_rows

BETAS = (0.18, 0.15, 0.12)
REFERENCE = 0.15
EPOCHS = (1, 2, 3)
DIGITS = 2
STATED = {REFERENCE: "reference; best at shot 1 everywhere", 0.12: "slightly below the reference; best at shot 3"}
"""The document's assessment of a KL_BETA."""


def tables(context: ReportContext) -> Iterator[Table]:
    """Yield the tables after the accuracies; none with fewer than two of the document's betas."""
    view = DocumentView(context)
    if len(view.betas) > 1 and view.epochs:
        yield _differences(view)
        yield _summary(view)


@dataclass(frozen=True)
class DocumentView:
    """Our run or the published one, restricted to the document's betas, epochs and sample count."""

    context: ReportContext
    is_ours: bool = True

    @property
    def betas(self) -> list[float]:
        """Return the document's betas that the run has: the reference, then the others in ascending order."""
        trained = self.context.main.betas()
        return sorted((beta for beta in BETAS if beta in trained), key=lambda beta: (beta != REFERENCE, beta))

    @property
    def epochs(self) -> list[int]:
        """Return the document's epochs that the run has."""
        return [epoch for epoch in EPOCHS if epoch in self.context.main.epochs]

    def group(self, beta: float, epoch: int) -> str:
        """Return our policy, or the published one."""
        if self.is_ours:
            return self.context.grpo(beta, epoch)
        return published_run(beta, epoch)

    def accuracy(self, beta: float, epoch: int, shots: int | str) -> Estimate | None:
        """Return an accuracy, ours with its interval; the published mean over shots is recomputed."""
        if self.is_ours:
            return level(self.context.accuracy(self.group(beta, epoch), shots, self.context.document_samples), DIGITS)
        if shots == MEAN:
            return average([self.accuracy(beta, epoch, k) for k in self.context.shots], DIGITS)
        location = {"samples": self.context.document_samples, "shots": shots}
        return level(quoted(self.context.evidence, FILES["002"], beta, epoch, "accuracy", **location), DIGITS)

    def gap(self, left: float, right: float, epoch: int, shots: int | str) -> Estimate | None:
        """Return a difference of accuracies, ours with its interval."""
        if self.is_ours:
            return gap(self.compared(left, right, epoch, shots))
        return minus(self.accuracy(left, epoch, shots), self.accuracy(right, epoch, shots))

    def compared(self, left: float, right: float, epoch: int, shots: int | str) -> EvidenceRow | None:
        """Return our comparison of two betas in the family of the epoch."""
        groups = (self.context.grpo(beta, epoch) for beta in (left, right))
        return self.context.compared(
            *groups, shots=shots, samples=self.context.document_samples, family=f"document-002/epoch~{epoch}"
        )

    def assessed(self, compared: Mapping[Message, EvidenceRow | None]) -> Cell:
        """Return the verdicts on our comparisons; None for the published side, which published no tests."""
        tested = {what: row for what, row in compared.items() if row is not None and not isnan(row.p_holm)}
        texts = (
            message("{what} {verdict} (p {p})", what=what, verdict=verdict(row.p_holm), p=holm(row))
            for what, row in tested.items()
        )
        return tuple(texts) if tested and self.is_ours else None

    def rows(self, names: Row, cells: Cells, epoch: int, *betas: float) -> Iterator[Row]:
        """Yield our row and below it the published one, each with its policies of an epoch."""
        published = replace(self, is_ours=False)
        policies = [[side.group(beta, epoch) for beta in betas or self.betas] for side in (self, published)]
        return paired_rows(names, cells(self), cells(published), policies)


Cells = Callable[[DocumentView], Row]
"""Function that returns the cells of a row, after its names, for one side."""


def _differences(view: DocumentView) -> Table:
    last, others = view.betas[-1], view.betas[:-1]
    pairs = [(last, beta) for beta in others] + [(beta, REFERENCE) for beta in others if beta != REFERENCE]

    def cells(side: DocumentView, epoch: int, shots: int) -> Row:
        rows = {message("against {beta}", beta=beta): view.compared(last, beta, epoch, shots) for beta in others}
        levels = {beta: side.accuracy(beta, epoch, shots) for beta in view.betas}
        numbers = [value for _, value in sorted(levels.items()) if value is not None]
        ends = [number.value for number in numbers]
        spread = derived(max(ends) - min(ends), DIGITS, numbers, "largest minus smallest") if len(numbers) > 1 else None
        return {
            **{message("KL_BETA={beta}", beta=beta): value for beta, value in levels.items()},
            **{
                message("{left} vs {right}", left=pair[0], right=pair[1]): side.gap(*pair, epoch, shots)
                for pair in pairs
            },
            "Assessment": side.assessed(rows),
            "Range": spread,
            "Trend": spread and trend(numbers),
        }

    rows: list[Row] = []
    for epoch, shots in product(view.epochs, view.context.shots):
        rows += view.rows({"Epoch": epoch, "Shot": shots}, partial(cells, epoch=epoch, shots=shots), epoch)
    title = message("Differences at {samples} samples", samples=view.context.document_samples)
    return Table("002-differences", "002", title, framed(rows), factor="kl_beta epoch")


def _summary(view: DocumentView) -> Table:
    first = view.epochs[0]

    def cells(side: DocumentView, beta: float) -> Row:
        gaps: list[Cell] = [side.gap(beta, REFERENCE, epoch, MEAN) for epoch in view.epochs]
        if beta == REFERENCE:
            gaps = ["reference" if side.is_ours or cell else None for cell in gaps]
        rows = {message("epoch {epoch}", epoch=e): view.compared(beta, REFERENCE, e, MEAN) for e in view.epochs}
        heads = (message("Epoch {epoch} mean difference", epoch=epoch) for epoch in view.epochs)
        return {
            **dict(zip(heads, gaps, strict=True)),
            message("Best shot (epoch {epoch})", epoch=first): _best_shot(side, beta, first),
            "Assessment": side.assessed(rows) if side.is_ours else STATED.get(beta),
        }

    rows: list[Row] = []
    for beta in sorted(view.betas, reverse=True):
        rows += view.rows({"KL_BETA": f"{beta:g}"}, partial(cells, beta=beta), first, beta)
    title = message("KL_BETA compared, {samples} samples", samples=view.context.document_samples)
    return Table("002-summary", "002", title, framed(rows), factor="kl_beta epoch")


def _best_shot(side: DocumentView, beta: float, epoch: int) -> Cell:
    """Return the shot count with the largest difference from the reference, or the reference's most accurate one."""
    by_shots: dict[int, Estimate] = {}
    for shots in side.context.shots:
        of_reference = beta == REFERENCE
        cell = side.accuracy(beta, epoch, shots) if of_reference else side.gap(beta, REFERENCE, epoch, shots)
        if cell is not None:
            by_shots[shots] = cell.plain
    if not by_shots:
        return None
    best = max(by_shots, key=lambda shots: (by_shots[shots].value, -shots))
    # Values that print equal are ties.
    tied = [shots for shots, cell in by_shots.items() if str(cell) == str(by_shots[best])]
    return message("shot {shots} ({value})", shots=tied if len(tied) > 1 else best, value=by_shots[best])


def trend(values: Sequence[Estimate]) -> Cell:
    """Return the trend of three printed numbers, such as `rises, then falls`; flat parts between slopes add no word."""
    printed = [float(number_text(value.value, value.digits)) for value in values]
    slopes = ["rises" if after > before else "falls" for before, after in pairwise(printed) if after != before]
    first, *rest = [slope for slope, _ in groupby(slopes)] or ["equal"]
    return message("{first}, then {last}", first=first, last=rest[-1]) if rest else first
