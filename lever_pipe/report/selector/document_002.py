"""What document 002 concludes from its accuracies: differences, summary, trends, and what it expects of KL_BETA."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import isnan

from lever_pipe.base.policy_names import beta_text
from lever_pipe.report.catalogue import number_text
from lever_pipe.report.cells import (
    Cell,
    Number,
    Series,
    Verdict,
    average,
    derived,
    gap,
    holm,
    level,
    minus,
    say,
)
from lever_pipe.report.evidence import MEAN, EvidenceRow
from lever_pipe.report.inference.families import HIGHEST
from lever_pipe.report.material import Material
from lever_pipe.report.table import Column, Table, TableLine, beside

QUOTED = ("2025-12-20正确率.md", "2025-12-20正确率_KL012对比.md", "KL_BETA_0145_0155对比.md")
"""Files of the reference that the document quotes; the first that has a number counts."""
BETAS = (0.18, 0.15, 0.12)
REFERENCE = 0.15
EPOCHS = (1, 2, 3)
SIGNIFICANT = 0.05
DIGITS = 2


def tables(material: Material) -> Iterator[Table]:
    """Yield the tables behind those of accuracies; none without two of the document's betas."""
    view = DocumentView(material)
    if len(view.betas) > 1 and view.epochs:
        yield _differences(view)
        yield _summary(view)
        yield _by_shot(view)
        yield _expectations(view)


@dataclass(frozen=True)
class DocumentView:
    """The run as the document looks at it: its betas and epochs, at its sample count."""

    material: Material

    @property
    def betas(self) -> list[float]:
        """Return the document's betas that the run has, the reference first and the others rising."""
        known = self.material.main.betas()
        return sorted((beta for beta in BETAS if beta in known), key=lambda beta: (beta != REFERENCE, beta))

    @property
    def epochs(self) -> list[int]:
        """Return the document's epochs that the run has."""
        return [epoch for epoch in EPOCHS if epoch in self.material.main.epochs]

    @property
    def samples(self) -> int:
        """Return the sample count nearest to the document's."""
        return int(self.material.given["near200"])

    def accuracy(self, beta: float, epoch: int, shots: int | str) -> Number | None:
        """Return an accuracy of ours with its interval."""
        return level(self.material.accuracy(self.material.grpo(beta, epoch), shots, self.samples), DIGITS)

    def published(self, beta: float, epoch: int, shots: int | str) -> Number | None:
        """Return a published accuracy; the mean over shots is recomputed."""
        if shots == MEAN:
            return average([self.published(beta, epoch, k) for k in self.material.shots], DIGITS)
        subject, at = f"published/grpo/beta~{beta_text(beta)}/epoch~{epoch}", {"samples": self.samples, "shots": shots}
        rows = (self.material.evidence.find(subject, "accuracy", quoted=file, **at) for file in QUOTED)
        return level(next((row for row in rows if row is not None), None), DIGITS)

    def compared(self, left: float, right: float, epoch: int, shots: int | str) -> EvidenceRow | None:
        """Return the comparison of two betas in the family of the epoch."""
        groups = (self.material.grpo(beta, epoch) for beta in (left, right))
        return self.material.compared(*groups, shots=shots, samples=self.samples, family=f"document-002/epoch~{epoch}")

    def groups(self, epoch: int, betas: Sequence[float] = ()) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return ours and the published policies of an epoch, which one line holds."""
        shown = betas or self.betas
        ours = (self.material.grpo(beta, epoch) for beta in shown)
        return tuple(ours), tuple(f"published/grpo/beta~{beta_text(beta)}/epoch~{epoch}" for beta in shown)

    @property
    def places(self) -> list[tuple[int, int]]:
        """Return every epoch and number of shots."""
        return [(epoch, shots) for epoch in self.epochs for shots in self.material.shots]


def separated(row: EvidenceRow) -> Verdict:
    """Return whether a comparison is separated, by its adjusted p value."""
    return Verdict("doc.separated", "yes") if row.p_holm < SIGNIFICANT else Verdict("doc.not_separated", "open")


def _differences(view: DocumentView) -> Table:
    last, others = view.betas[-1], view.betas[:-1]
    lines: list[TableLine] = []
    for epoch, shots in view.places:
        ours: list[Cell] = [view.accuracy(beta, epoch, shots) for beta in view.betas]
        rows = {beta: view.compared(last, beta, epoch, shots) for beta in others}
        ours += [gap(row) for row in rows.values()]
        ours.append(_assessment({say("doc.against", beta=beta): row for beta, row in rows.items()}))
        published = {beta: view.published(beta, epoch, shots) for beta in view.betas}
        gaps = [minus(published[last], published[beta]) for beta in others]
        lines += beside((epoch, shots), ours, [*published.values(), *gaps, None], view.groups(epoch))
    pairs = [Column(say("doc.head.pair", left=last, right=beta)) for beta in others]
    columns = (*_places(), *_betas(view), *pairs, Column(say("doc.head.assessment"), "words"))
    return _table("differences", view, columns, lines)


def _assessment(rows: Mapping[Cell, EvidenceRow | None]) -> Cell:
    told = [
        say("doc.assessed", what=what, verdict=separated(row), p=holm(row))
        for what, row in rows.items()
        if row is not None and not isnan(row.p_holm)
    ]
    return Series(tuple(told), "parts") if told else None


def _summary(view: DocumentView) -> Table:
    lines: list[TableLine] = []
    first = view.epochs[0]
    for beta in sorted(view.betas, reverse=True):
        rows = {epoch: view.compared(beta, REFERENCE, epoch, MEAN) for epoch in view.epochs}
        ours: list[Cell] = [gap(row) for row in rows.values()]
        pairs = ((view.published(beta, epoch, MEAN), view.published(REFERENCE, epoch, MEAN)) for epoch in view.epochs)
        theirs: list[Cell] = [minus(left, right) for left, right in pairs]
        if beta == REFERENCE:
            ours = [say("doc.reference")] * len(ours)
            theirs = [cell and say("doc.reference") for cell in theirs]
        ours += [_best_shot(view, beta, first, is_ours=True)]
        ours += [_assessment({say("doc.at_that_epoch", epoch=epoch): row for epoch, row in rows.items()})]
        stated = say(f"doc.stated.beta_{beta_text(beta).partition('.')[2]}") if beta in (REFERENCE, 0.12) else None
        theirs += [_best_shot(view, beta, first, is_ours=False), stated]
        lines += beside((beta_text_cell(beta),), ours, theirs, view.groups(first, [beta]))
    columns = (
        Column(say("head.kl_beta"), "name"),
        Column(say("head.source"), "name"),
        *(Column(say("doc.head.mean_difference", epoch=epoch)) for epoch in view.epochs),
        Column(say("doc.head.best_shot", epoch=first), "words"),
        Column(say("doc.head.assessment"), "words"),
    )
    return _table("summary", view, columns, lines)


def _best_shot(view: DocumentView, beta: float, epoch: int, *, is_ours: bool) -> Cell:
    """Return where the difference to the reference is largest, of the reference where its accuracy is highest."""
    read = view.accuracy if is_ours else view.published
    found: dict[int, Number] = {}
    for shots in view.material.shots:
        cell = read(beta, epoch, shots)
        if beta != REFERENCE:
            row = view.compared(beta, REFERENCE, epoch, shots)
            cell = gap(row) if is_ours else minus(cell, read(REFERENCE, epoch, shots))
        if cell is not None:
            found[shots] = cell.plain
    if not found:
        return None
    best = max(found, key=lambda shots: (found[shots].value, -shots))
    return say("doc.shot_with", shots=best, value=found[best])


def _by_shot(view: DocumentView) -> Table:
    lines: list[TableLine] = []
    for epoch, shots in view.places:
        ours = _trend_cells({beta: view.accuracy(beta, epoch, shots) for beta in view.betas})
        theirs = _trend_cells({beta: view.published(beta, epoch, shots) for beta in view.betas})
        lines += beside((epoch, shots), ours, theirs, view.groups(epoch))
    trend = (Column(say("doc.head.range")), Column(say("doc.head.trend"), "words"))
    return _table("by-shot", view, (*_places(), *_betas(view), *trend), lines)


def _trend_cells(values: Mapping[float, Number | None]) -> list[Cell]:
    base = values.get(REFERENCE)
    cells: list[Cell] = []
    for beta, value in values.items():
        difference = None if beta == REFERENCE else minus(value, base)
        plain = value and value.plain
        cells.append(say("doc.with_gap", value=plain, gap=difference) if difference else plain)
    known = {beta: value for beta, value in sorted(values.items()) if value is not None}
    if len(known) < 2:
        return [*cells, None, None]
    ends = [each.value for each in known.values()]
    width = derived(max(ends) - min(ends), DIGITS, list(known.values()), "largest minus smallest")
    return [*cells, width, trend(list(known.values()))]


def trend(values: Sequence[Number]) -> Cell:
    """Return how three printed numbers go, such as `rises, then falls`; a level stretch beside a slope adds no word."""
    printed = [float(number_text(value.value, value.digits)) for value in values]
    slopes = ["rises" if after > before else "falls" for before, after in pairwise(printed) if after != before]
    first, *rest = [say(f"doc.trend.{slope}") for slope, _ in groupby(slopes)] or [say("doc.trend.equal")]
    return say("doc.trend.then", first=first, last=rest[-1]) if rest else first


def _expectations(view: DocumentView) -> Table:
    """Return what the document expects of a larger and a smaller KL_BETA, and what the run shows of it."""
    small, large = min(view.betas), max(view.betas)
    last = view.epochs[-1]
    lines = [
        _of_training(view, expected, metric, (small, large), sign)
        for expected, metric, sign in (
            ("stable", "grad_norm", -1),
            ("near_start", "kl_exact", -1),
            ("kl_falls_slowly", "kl", 1),
            ("explores_less", "entropy", -1),
        )
    ]
    lines += [
        _of_accuracy(view, expected, pair, (last, shots))
        for expected, pair, shots in (
            ("limits_learning", (small, large), MEAN),
            ("large_at_shot_1", (large, REFERENCE), 1),
            ("small_at_shot_3", (small, REFERENCE), 3),
            ("balance", (REFERENCE, large), MEAN),
        )
        if pair[0] != pair[1]
    ]
    columns = (
        Column(say("doc.head.expected"), "words", "published"),
        Column(say("doc.head.found"), "words", "ours"),
        Column(say("doc.head.verdict"), "words"),
    )
    shown = [line for line in lines if line is not None]
    return _table("expectations", view, columns, [*_observations(view), *shown, *_choice(view)])


def _observations(view: DocumentView) -> Iterator[TableLine]:
    """Yield how the metrics go that the document names as its key observations, from its first to its last epoch."""
    for metric, digits in (("kl", 4), ("ppo_loss", 4), ("loss", 4), ("max_advantage", 3)):
        told: list[Cell] = []
        for beta in sorted(view.betas):
            groups = [view.material.grpo(beta, epoch) for epoch in (view.epochs[0], view.epochs[-1])]
            first, last = (level(view.material.evidence.find(group, metric), digits) for group in groups)
            if first is not None and last is not None:
                told.append(say("doc.found.from_to", beta=beta, first=first, last=last, trend=trend([first, last])))
        if told:
            yield TableLine((say(f"doc.expected.observed_{metric}"), Series(tuple(told), "parts"), None))


def _of_training(
    view: DocumentView, expected: str, metric: str, betas: tuple[float, float], sign: int
) -> TableLine | None:
    """Return one expectation about training; `sign` of larger minus smaller beta is what is expected."""
    first, last = view.epochs[0], view.epochs[-1]
    cells = []
    for beta in betas:
        at = [level(view.material.evidence.find(view.material.grpo(beta, e), metric), 4) for e in (first, last)]
        cells.append(minus(at[1], at[0]) if expected == "kl_falls_slowly" else at[1])
    small, large = cells
    if small is None or large is None:
        return None
    is_so = sign * (large.value - small.value) > 0
    verdict = Verdict("doc.as_expected" if is_so else "doc.not_as_expected", "mute")
    found = say(f"doc.found.{metric}", epoch=last, small=betas[0], large=betas[1], at_small=small, at_large=large)
    return TableLine((say(f"doc.expected.{expected}"), found, verdict))


def _of_accuracy(
    view: DocumentView, expected: str, pair: tuple[float, float], at: tuple[int, int | str]
) -> TableLine | None:
    """Return one expectation that the accuracy of the first beta is the higher."""
    epoch, shots = at
    row = view.compared(*pair, epoch, shots)
    if row is None:
        row = view.compared(pair[1], pair[0], epoch, shots)
        pair = pair[::-1]
    if row is None:
        return None
    where = say("doc.mean_over_shots") if shots == MEAN else say("head.shot", shots=shots)
    found = say("doc.found.accuracy", left=pair[0], right=pair[1], gap=gap(row), epoch=epoch, where=where, p=holm(row))
    return TableLine((say(f"doc.expected.{expected}"), found, separated(row)))


def _choice(view: DocumentView) -> list[TableLine]:
    """Return which KL_BETA to choose: the highest accuracy, and whether any other is separated from it."""
    rows = view.material.evidence.where(metric="accuracy", family=HIGHEST, shots=MEAN)
    if not rows:
        return []
    best = min(rows, key=lambda row: row.p_holm)
    accuracies = {beta: view.material.accuracy(group) for beta, group in view.material.main.last_grpo.items()}
    top = max((row.value, beta) for beta, row in accuracies.items() if row is not None)[1]
    message = "doc.found.choice_apart" if best.p_holm < SIGNIFICANT else "doc.found.choice_open"
    found = say(message, beta=top, value=level(accuracies[top], 1), p=holm(best))
    return [TableLine((say("doc.expected.choice"), found, separated(best)))]


def beta_text_cell(beta: float) -> Cell:
    """Return a KL_BETA as a cell."""
    return say("doc.beta", beta=beta)


def _places() -> tuple[Column, ...]:
    return tuple(Column(say(head), "name") for head in ("head.epoch", "doc.head.shot", "head.source"))


def _betas(view: DocumentView) -> tuple[Column, ...]:
    return tuple(Column(say("doc.head.beta", beta=beta)) for beta in view.betas)


def _table(name: str, view: DocumentView, columns: Sequence[Column], lines: Sequence[TableLine]) -> Table:
    return Table(
        id=f"002-{name}",
        section="002",
        title=say(f"doc.{name.replace('-', '_')}.title", samples=view.samples),
        columns=tuple(columns),
        lines=tuple(lines),
        notes=(say(f"doc.{name.replace('-', '_')}.note"),),
        factor="" if name == "expectations" else "kl_beta epoch",
    )
