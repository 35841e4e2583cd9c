"""What document 002 concludes from its accuracies: differences, summary, trends, and what it expects of KL_BETA."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise, product
from math import isnan

from lever_pipe.base.policy_names import beta_text
from lever_pipe.report.catalogue import number_text
from lever_pipe.report.cells import (
    Cell,
    Message,
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
from lever_pipe.report.evidence import ALPHA, MEAN, EvidenceRow
from lever_pipe.report.inference.families import HIGHEST
from lever_pipe.report.material import Material
from lever_pipe.report.reference import FILES
from lever_pipe.report.table import Column, Table, TableLine, beside

BETAS = (0.18, 0.15, 0.12)
REFERENCE = 0.15
EPOCHS = (1, 2, 3)
DIGITS = 2
TRAINING = (
    ("stable", "grad_norm", -1),
    ("near_start", "kl_exact", -1),
    ("kl_falls_slowly", "kl", 1),
    ("explores_less", "entropy", -1),
)
"""What is expected of training, by which metric, and the sign of the larger minus the smaller beta."""


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
    """The run, or what was published, as the document looks at it: its betas and epochs, at its sample count."""

    material: Material
    is_ours: bool = True

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
        return self.material.document_samples

    def group(self, beta: float, epoch: int) -> str:
        """Return a policy of ours, or the published one."""
        if self.is_ours:
            return self.material.grpo(beta, epoch)
        return f"published/grpo/beta~{beta_text(beta)}/epoch~{epoch}"

    def accuracy(self, beta: float, epoch: int, shots: int | str) -> Number | None:
        """Return an accuracy, of ours with its interval; the published mean over shots is recomputed."""
        group = self.group(beta, epoch)
        if self.is_ours:
            return level(self.material.accuracy(group, shots, self.samples), DIGITS)
        if shots == MEAN:
            return average([self.accuracy(beta, epoch, k) for k in self.material.shots], DIGITS)
        at = {"samples": self.samples, "shots": shots}
        rows = (self.material.evidence.find(group, "accuracy", quoted=file, **at) for file in FILES["002"])
        return level(next((row for row in rows if row is not None), None), DIGITS)

    def gap(self, left: float, right: float, epoch: int, shots: int | str) -> Number | None:
        """Return a difference of accuracies, of ours with its interval."""
        if self.is_ours:
            return gap(self.compared(left, right, epoch, shots))
        return minus(self.accuracy(left, epoch, shots), self.accuracy(right, epoch, shots))

    def ends(self, beta: float, metric: str, digits: int) -> tuple[Number | None, Number | None]:
        """Return a training metric of ours in the first and last epoch."""
        groups = (self.material.grpo(beta, epoch) for epoch in (self.epochs[0], self.epochs[-1]))
        first, last = (level(self.material.evidence.find(group, metric), digits) for group in groups)
        return first, last

    def compared(self, left: float, right: float, epoch: int, shots: int | str) -> EvidenceRow | None:
        """Return our comparison of two betas in the family of the epoch."""
        groups = (self.material.grpo(beta, epoch) for beta in (left, right))
        return self.material.compared(*groups, shots=shots, samples=self.samples, family=f"document-002/epoch~{epoch}")

    def assessed(self, compared: Mapping[Message, EvidenceRow | None]) -> Cell:
        """Return of ours which comparisons are separated; nothing of that was published."""
        known = {what: row for what, row in compared.items() if row is not None and not isnan(row.p_holm)}
        told = (say("doc.assessed", what=what, verdict=separated(row), p=holm(row)) for what, row in known.items())
        return Series(tuple(told), "parts") if known and self.is_ours else None

    def lines(self, names: Sequence[Cell], cells: Cells, epoch: int, *betas: float) -> Iterator[TableLine]:
        """Yield the line of ours and below it the published one, with the policies of an epoch behind each."""
        theirs = replace(self, is_ours=False)
        groups = [tuple(side.group(beta, epoch) for beta in betas or self.betas) for side in (self, theirs)]
        return beside(names, cells(self), cells(theirs), (groups[0], groups[1]))


Cells = Callable[[DocumentView], Sequence[Cell]]
"""From one side to the cells of a line behind its names."""


def separated(row: EvidenceRow) -> Verdict:
    """Return whether a comparison is separated, by its adjusted p value."""
    return Verdict("doc.separated", "yes") if row.p_holm < ALPHA else Verdict("doc.not_separated", "open")


def _differences(view: DocumentView) -> Table:
    last, others = view.betas[-1], view.betas[:-1]

    def cells(side: DocumentView, epoch: int, shots: int) -> list[Cell]:
        rows = {say("doc.against", beta=beta): view.compared(last, beta, epoch, shots) for beta in others}
        levels = (side.accuracy(beta, epoch, shots) for beta in view.betas)
        return [*levels, *(side.gap(last, beta, epoch, shots) for beta in others), side.assessed(rows)]

    lines = _by_place(view, cells)
    pairs = [Column(say("doc.head.pair", left=last, right=beta)) for beta in others]
    columns = (*_places(), *_betas(view), *pairs, Column(say("doc.head.assessment"), "words"))
    return _table("differences", view, columns, lines)


def _summary(view: DocumentView) -> Table:
    first = view.epochs[0]

    def cells(side: DocumentView, beta: float) -> list[Cell]:
        found: list[Cell] = [side.gap(beta, REFERENCE, epoch, MEAN) for epoch in view.epochs]
        if beta == REFERENCE:
            found = [say("doc.reference") if side.is_ours or cell else None for cell in found]
        rows = {say("doc.at_that_epoch", epoch=e): view.compared(beta, REFERENCE, e, MEAN) for e in view.epochs}
        stated = say(f"doc.stated.beta_{beta_text(beta).partition('.')[2]}") if beta in (REFERENCE, 0.12) else None
        return [*found, _best_shot(side, beta, first), side.assessed(rows) if side.is_ours else stated]

    lines: list[TableLine] = []
    for beta in sorted(view.betas, reverse=True):
        lines += view.lines((say("doc.beta", beta=beta),), partial(cells, beta=beta), first, beta)
    columns = (
        Column(say("head.kl_beta"), "name"),
        Column(say("head.source"), "name"),
        *(Column(say("doc.head.mean_difference", epoch=epoch)) for epoch in view.epochs),
        Column(say("doc.head.best_shot", epoch=first), "words"),
        Column(say("doc.head.assessment"), "words"),
    )
    return _table("summary", view, columns, lines)


def _best_shot(side: DocumentView, beta: float, epoch: int) -> Cell:
    """Return where the difference to the reference is largest, of the reference where its accuracy is highest."""
    found: dict[int, Number] = {}
    for shots in side.material.shots:
        of_reference = beta == REFERENCE
        cell = side.accuracy(beta, epoch, shots) if of_reference else side.gap(beta, REFERENCE, epoch, shots)
        if cell is not None:
            found[shots] = cell.plain
    if not found:
        return None
    best = max(found, key=lambda shots: (found[shots].value, -shots))
    return say("doc.shot_with", shots=best, value=found[best])


def _by_shot(view: DocumentView) -> Table:
    def cells(side: DocumentView, epoch: int, shots: int) -> list[Cell]:
        return _trend_cells({beta: side.accuracy(beta, epoch, shots) for beta in view.betas})

    lines = _by_place(view, cells)
    trend = (Column(say("doc.head.range")), Column(say("doc.head.trend"), "words"))
    return _table("by-shot", view, (*_places(), *_betas(view), *trend), lines)


def _trend_cells(values: Mapping[float, Number | None]) -> list[Cell]:
    base = values.get(REFERENCE)
    cells: list[Cell] = []
    for beta, value in values.items():
        difference = None if beta == REFERENCE else minus(value, base)
        plain = value and value.plain
        cells.append(say("doc.with_gap", value=plain, gap=difference) if difference else plain)
    known = [value for _, value in sorted(values.items()) if value is not None]
    if len(known) < 2:
        return [*cells, None, None]
    ends = [each.value for each in known]
    return [*cells, derived(max(ends) - min(ends), DIGITS, known, "largest minus smallest"), trend(known)]


def trend(values: Sequence[Number]) -> Cell:
    """Return how three printed numbers go, such as `rises, then falls`; a level stretch beside a slope adds no word."""
    printed = [float(number_text(value.value, value.digits)) for value in values]
    slopes = ["rises" if after > before else "falls" for before, after in pairwise(printed) if after != before]
    first, *rest = [say(f"doc.trend.{slope}") for slope, _ in groupby(slopes)] or [say("doc.trend.equal")]
    return say("doc.trend.then", first=first, last=rest[-1]) if rest else first


def _expectations(view: DocumentView) -> Table:
    """Return what the document expects of a larger and a smaller KL_BETA, and what the run shows of it."""
    columns = (
        Column(say("doc.head.expected"), "words", "published"),
        Column(say("doc.head.found"), "words", "ours"),
        Column(say("doc.head.verdict"), "words"),
    )
    lines = [*_observations(view), *_of_training(view), *_of_accuracy(view), *_choice(view)]
    return _table("expectations", view, columns, lines)


def _observations(view: DocumentView) -> Iterator[TableLine]:
    """Yield how the metrics go that the document names as its key observations, from its first to its last epoch."""
    for metric, digits in (("kl", 4), ("ppo_loss", 4), ("loss", 4), ("max_advantage", 3)):
        told: list[Cell] = []
        for beta in sorted(view.betas):
            first, last = view.ends(beta, metric, digits)
            if first is not None and last is not None:
                told.append(say("doc.found.from_to", beta=beta, first=first, last=last, trend=trend([first, last])))
        if told:
            yield TableLine((say(f"doc.expected.observed_{metric}"), Series(tuple(told), "parts"), None))


def _of_training(view: DocumentView) -> Iterator[TableLine]:
    """Yield what is expected of training; KL is taken as its change from the first epoch to the last."""
    betas = {"small": min(view.betas), "large": max(view.betas)}
    for expected, metric, sign in TRAINING:
        ends = [view.ends(beta, metric, 4) for beta in betas.values()]
        small, large = (minus(last, first) if metric == "kl" else last for first, last in ends)
        if small is not None and large is not None:
            is_so = sign * (large.value - small.value) > 0
            verdict = Verdict("doc.as_expected" if is_so else "doc.not_as_expected", "mute")
            found = say(f"doc.found.{metric}", epoch=view.epochs[-1], **betas, at_small=small, at_large=large)
            yield TableLine((say(f"doc.expected.{expected}"), found, verdict))


def _of_accuracy(view: DocumentView) -> Iterator[TableLine]:
    """Yield the expectations that the accuracy of one beta is higher than that of another."""
    small, large, epoch = min(view.betas), max(view.betas), view.epochs[-1]
    expectations: Mapping[str, tuple[float, float, int | str]] = {
        "limits_learning": (small, large, MEAN),
        "large_at_shot_1": (large, REFERENCE, 1),
        "small_at_shot_3": (small, REFERENCE, 3),
        "balance": (REFERENCE, large, MEAN),
    }
    for expected, (higher, lower, shots) in expectations.items():
        where = say("doc.mean_over_shots") if shots == MEAN else say("head.shot", shots=shots)
        for left, right in ((higher, lower), (lower, higher)):
            row = view.compared(left, right, epoch, shots)
            if row is not None:
                told = {"left": left, "right": right, "gap": gap(row), "epoch": epoch, "where": where, "p": holm(row)}
                yield TableLine((say(f"doc.expected.{expected}"), say("doc.found.accuracy", **told), separated(row)))
                break


def _choice(view: DocumentView) -> list[TableLine]:
    """Return which KL_BETA to choose: the highest accuracy, and whether any other is separated from it."""
    rows = view.material.evidence.where(metric="accuracy", family=HIGHEST, shots=MEAN)
    if not rows:
        return []
    best = min(rows, key=lambda row: row.p_holm)
    accuracies = {beta: view.material.accuracy(group) for beta, group in view.material.main.last_grpo.items()}
    top = max((row.value, beta) for beta, row in accuracies.items() if row is not None)[1]
    message = "doc.found.choice_apart" if best.p_holm < ALPHA else "doc.found.choice_open"
    found = say(message, beta=top, value=level(accuracies[top], 1), p=holm(best))
    return [TableLine((say("doc.expected.choice"), found, separated(best)))]


def _by_place(view: DocumentView, cells: Callable[[DocumentView, int, int], Sequence[Cell]]) -> list[TableLine]:
    """Return the lines of every epoch and number of shots."""
    places = product(view.epochs, view.material.shots)
    return [line for at in places for line in view.lines(at, lambda side, at=at: cells(side, *at), at[0])]  # type: ignore[misc]


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
