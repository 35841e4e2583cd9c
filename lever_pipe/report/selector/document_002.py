"""Conclusions of document 002 from its accuracies: differences with their trend, and a summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise, product
from math import isnan

from lever_pipe.report import verdicts
from lever_pipe.report.cells import Cell, Estimate, Message, derived, holm, message
from lever_pipe.report.context import ReportContext
from lever_pipe.report.evidence import EvidenceRow
from lever_pipe.report.format import number_text
from lever_pipe.report.inference.families import REFERENCE_BETA
from lever_pipe.report.selector.sides import DIGITS, EPOCHS, Point, Side, paired
from lever_pipe.report.table import Row, Table, framed

BETAS = (0.18, 0.15, 0.12)


def tables(context: ReportContext) -> Iterator[Table]:
    """Yield the tables after the accuracies; none with fewer than two of the document's betas."""
    betas = sorted({*BETAS} & {*context.main.betas()}, key=lambda beta: (beta != REFERENCE_BETA, beta))
    epochs = [epoch for epoch in EPOCHS if epoch in context.main.epochs]
    if len(betas) > 1 and epochs:
        yield _differences(context, tuple(betas), epochs)
        yield _summary(context, betas, epochs)


def _assessed(compared: Mapping[Message, EvidenceRow | None]) -> Cell:
    """Return the verdicts on comparisons; None without any."""
    tested = {what: row for what, row in compared.items() if row is not None and not isnan(row.p_holm)}
    texts = (
        message("{what} {verdict} (p {p})", what=what, verdict=verdicts.of_p(row.p_holm), p=holm(row))
        for what, row in tested.items()
    )
    return tuple(texts) or None


def _differences(context: ReportContext, betas: tuple[float, ...], epochs: Sequence[int]) -> Table:
    last, others = betas[-1], betas[:-1]
    pairs = [(last, beta) for beta in others] + [(beta, REFERENCE_BETA) for beta in others if beta != REFERENCE_BETA]

    def cells(side: Side, point: Point) -> Row:
        epoch, shots = point.epoch, point.shots
        rows = {message("against {beta}", beta=beta): side.compared(last, beta, epoch, shots) for beta in others}
        levels = {beta: side.accuracy(beta, epoch, shots) for beta in betas}
        gaps = {pair: side.gap(*pair, epoch, shots) for pair in pairs}
        numbers = [value for _, value in sorted(levels.items()) if value is not None]
        ends = [number.value for number in numbers]
        spread = derived(max(ends) - min(ends), DIGITS, numbers, "largest minus smallest") if len(numbers) > 1 else None
        return {
            **{message("KL_BETA={beta}", beta=beta): value for beta, value in levels.items()},
            **{message("{left} vs {right}", left=left, right=right): value for (left, right), value in gaps.items()},
            "Assessment": _assessed(rows),
            "Range": spread,
            "Trend": spread and trend(numbers),
        }

    points = [
        Point({"Epoch": epoch, "Shot": shots}, epoch, betas, shots=shots)
        for epoch, shots in product(epochs, context.shots)
    ]
    title = message("Differences at {samples} samples", samples=context.document_samples)
    rows = paired(context, "002", points, cells)
    return Table("002-differences", "002", title, framed(rows), factor="kl_beta epoch")


def _summary(context: ReportContext, betas: Sequence[float], epochs: Sequence[int]) -> Table:
    first, stated = epochs[0], {each.claim.left[0]: each.published.numbers for each in context.claims_of("002-summary")}

    def cells(side: Side, point: Point) -> Row:
        (beta,) = point.betas
        gaps: list[Cell] = [side.gap(beta, REFERENCE_BETA, epoch) for epoch in epochs]
        if beta == REFERENCE_BETA:
            gaps = ["reference" if side.is_ours or side.accuracy(beta, epoch) else None for epoch in epochs]
        rows = {message("epoch {epoch}", epoch=epoch): side.compared(beta, REFERENCE_BETA, epoch) for epoch in epochs}
        heads = (message("Epoch {epoch} mean difference", epoch=epoch) for epoch in epochs)
        return {
            **dict(zip(heads, gaps, strict=True)),
            message("Best shot (epoch {epoch})", epoch=first): _best_shot(side, beta, first),
            "Assessment": _assessed(rows) if side.is_ours else stated.get(beta),
        }

    points = [Point({"KL_BETA": f"{beta:g}"}, first, (beta,)) for beta in sorted(betas, reverse=True)]
    title = message("KL_BETA compared, {samples} samples", samples=context.document_samples)
    rows = paired(context, "002", points, cells)
    return Table("002-summary", "002", title, framed(rows), factor="kl_beta epoch")


def _best_shot(side: Side, beta: float, epoch: int) -> Cell:
    """Return the shot count with the largest difference from the reference, or the reference's most accurate one."""
    by_shots: dict[int, Estimate] = {}
    for shots in side.context.shots:
        of_reference = beta == REFERENCE_BETA
        cell = side.accuracy(beta, epoch, shots) if of_reference else side.gap(beta, REFERENCE_BETA, epoch, shots)
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
