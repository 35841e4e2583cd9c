"""Reasons for patterns in the published tables: each pattern, and its outcome with an emulated bug.

A verdict follows from the criterion of its line, not from visual inspection. A pattern that also occurs without the bug
is no evidence for it. A pattern is omitted if the configuration does not produce its numbers (too few betas, epochs or
shots).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import perm
from statistics import fmean
from typing import Any, NamedTuple

from lever_pipe.experiment.emulation import CONTROL, DROPOUT, HEAD, POOL
from lever_pipe.report.cells import (
    Cell,
    Estimate,
    Message,
    code,
    derived,
    level,
    message,
)
from lever_pipe.report.context import ReportContext
from lever_pipe.report.evidence import EvidenceRow
from lever_pipe.report.format import number_text
from lever_pipe.report.reference import ACCURACY_015
from lever_pipe.report.selector.emulation import (
    DIGITS,
    OF_ANOTHER_BASE,
    PUBLISHED,
    EmulatedStudy,
    Rows,
    emulation_of,
)
from lever_pipe.report.table import Table, framed

STATEMENTS = {
    "identical_rows": "KL_BETA {betas} have one row of accuracies.",
    "repeated": "Every prompt of {shots} shots shows a demonstration twice.",
    "few_prompts": "All checkpoints together make at most {most} prompts of a query.",
    "reused_rows": "KL_BETA {beta} differs between epochs 1 and 2 at 1 and 2 shots, not at more.",
    "kl_without_update": "A KL between half and twice the logged one appears without a single update.",
    "kl_falls": "KL falls from epoch to epoch.",
}


class Appearance(NamedTuple):
    """The outcome of an arm: its cell, whether the pattern occurs, and whether it occurs in part, if that differs."""

    cell: Cell
    holds: bool
    in_part: bool | None = None


@dataclass(frozen=True, slots=True)
class Pattern:
    """A published pattern and its outcomes in the emulation; patterns of the same `name` differ in their arm."""

    name: str
    statement: Message
    arm: str
    published: Cell
    bug: Appearance
    control: Appearance

    @property
    def verdict(self) -> str:
        """Return the verdict on the bug; without the bug, a pattern that occurs in part counts as present."""
        if not self.bug.holds:
            return "not reproduced"
        also = self.control.holds if self.control.in_part is None else self.control.in_part
        return "also without the bug" if also else "reproduced"


def tables(context: ReportContext) -> Iterator[Table]:
    """Yield the patterns."""
    study = emulation_of(context)
    if study is None:
        return
    evaluated = patterns(study)
    rows = [
        {
            "Published pattern": pattern.statement,
            "Published": pattern.published,
            "Bug": code(pattern.arm),
            "With it": pattern.bug.cell,
            "Without": pattern.control.cell,
            "Verdict": pattern.verdict,
        }
        for pattern in evaluated
    ]
    facts = {**tally(evaluated), **coincidences(study)}
    yield Table("patterns", "why", "Published patterns, and the bugs that make them", framed(rows), facts)


def patterns(study: EmulatedStudy) -> list[Pattern]:
    """Return every pattern that the configuration can evaluate."""
    makers = (identical_rows, repeats, reused_rows, kl_without_update)
    return [pattern for make in makers for pattern in make(study)]


def coincidences(study: EmulatedStudy) -> dict[str, Any]:
    """Return the epochs whose betas all have the same accuracies by training alone, without any bug."""
    betas = study.emulate.kl_betas
    epochs = [e for e in study.epochs if len({_digits(study.cells(CONTROL, (beta, e))) for beta in betas}) == 1]
    facts = {"samples": study.context.document_samples, "n": len(betas), "preset": study.emulate.preset}
    return {"epochs": [str(epoch) for epoch in epochs], **facts}


def tally(evaluated: Sequence[Pattern]) -> dict[str, Estimate]:
    """Return the number of published statements that a bug reproduces; a statement counts once for all its arms."""
    verdicts: dict[str, set[str]] = {}
    for pattern in evaluated:
        # A pattern without published numbers is set aside.
        verdicts.setdefault(pattern.name, set()).add(pattern.verdict if pattern.published is not None else "")
    reproduced = sum("reproduced" in results for results in verdicts.values())
    aside = sum(not results & {"reproduced", "not reproduced"} for results in verdicts.values())
    counts = {"reproduced": reproduced, "all": len(verdicts) - aside, "aside": aside}
    return {name: _counted(value, ()) for name, value in counts.items()}


def search(name: str, arm: str, find: Callable[[str], Appearance], published: Cell, **given: Any) -> Pattern:
    """Return a pattern tested with a bug and without any; `given` are the arguments of its statement."""
    return Pattern(name, message(STATEMENTS[name], **given), arm, published, find(arm), find(CONTROL))


def identical_rows(study: EmulatedStudy) -> Iterator[Pattern]:
    """Yield the pattern that the betas of one base agree in every published cell, for each bug that may cause it."""
    if len(study.others) < 2:
        return
    candidates = [(beta, epoch) for beta in study.others for epoch in study.epochs]
    published = {run: printed for run in candidates if (printed := study.cells(PUBLISHED, run))}
    runs = list(published) or candidates

    def find(arm: str) -> Appearance:
        rows = [study.cells(arm, run) for run in runs]
        return Appearance(_distinct(rows), len(set(map(_digits, rows))) == 1)

    for arm in (HEAD, POOL):
        yield search("identical_rows", arm, find, _distinct(list(published.values())), betas=study.others)


def repeats(study: EmulatedStudy) -> Iterator[Pattern]:
    """Yield the patterns that long prompts repeat demonstrations, and that there are few prompts."""
    items = study.emulate.pool_items
    long = [k for k in study.context.shots if k > items]
    most = sum(perm(items, min(k, items)) for k in study.context.shots)

    def repeated(arm: str) -> Appearance:
        rows = [study.evidence.get(f"emulation/{arm}", "repeated_share", shots=k) for k in long]
        mean = derived(100 * fmean(row.value for row in rows), 1, rows, "mean, in percent")
        shares = [row.value for row in rows]
        return Appearance(mean and replace(mean, unit=" %"), min(shares) == 1, max(shares) > 0)

    def few(arm: str) -> Appearance:
        row = study.evidence.get(f"emulation/{arm}", "prompts_a_query_max")
        return Appearance(level(row, 0), row.value <= most)

    if long:
        yield search("repeated", POOL, repeated, None, shots=[str(k) for k in long])
    yield search("few_prompts", POOL, few, None, most=most)


def reused_rows(study: EmulatedStudy) -> Iterator[Pattern]:
    """Yield the pattern that two epochs of one beta differ at few shots and agree at many."""
    spans = [[k for k in study.context.shots if (k > 2) == more] for more in (False, True)]
    beta, samples = OF_ANOTHER_BASE, study.context.samples
    if not (all(spans) and 2 in study.epochs and beta in study.emulate.kl_betas):
        return

    def outcome(pairs: Sequence[Sequence[Rows]]) -> Appearance:
        few, many = (sum(a != b for a, b in zip(*map(_digits, pair), strict=True)) for pair in pairs)
        rows = [[row for cells in pair for row in cells] for pair in pairs]
        texts = [
            message("{n} of {all}", n=_counted(n, operands), all=_counted(len(operands) // 2, operands))
            for n, operands in zip((few, many), rows, strict=True)
        ]
        return Appearance(texts, few > 0 == many)

    def find(arm: str) -> Appearance:
        return outcome([[study.cells(arm, (beta, epoch), samples, k) for epoch in (1, 2)] for k in spans])

    printed = [[study.cells(PUBLISHED, (beta, epoch), samples, k, ACCURACY_015) for epoch in (1, 2)] for k in spans]
    published = outcome(printed).cell if all(map(all, printed)) else None
    yield search("reused_rows", POOL, find, published, beta=beta)


def kl_without_update(study: EmulatedStudy) -> Iterator[Pattern]:
    """Yield the patterns that KL is logged without an update, and that it falls from epoch to epoch."""
    published = study.printed("kl", 1)
    if not published:
        return
    logged = [row.value for row in published]

    def appears(arm: str) -> Appearance:
        row = study.untouched(arm, "kl", 1)
        return Appearance(level(row, 5), min(logged) / 2 <= row.value <= 2 * max(logged))

    def falls(arm: str) -> Appearance:
        first, later = (study.untouched(arm, "kl", epoch) for epoch in (1, 2))
        return Appearance((level(first, 5), level(later, 5)), later.value < first.value)

    yield search("kl_without_update", DROPOUT, appears, _extent(published))
    yield search("kl_falls", DROPOUT, falls, _course(study, (1, 2)))


def _course(study: EmulatedStudy, epochs: Sequence[int]) -> Cell:
    """Return the published KL by epoch, mean over the betas that have all of these epochs."""
    runs = [[row for epoch in epochs for row in study.printed("kl", epoch, [beta])] for beta in study.emulate.kl_betas]
    whole = zip(*(run for run in runs if len(run) == len(epochs)), strict=True)
    return tuple(derived(fmean(row.value for row in rows), 5, rows, "mean over KL_BETA") for rows in whole) or None


def _digits(rows: Rows) -> tuple[str, ...]:
    """Return accuracies as printed, to compare rows."""
    return tuple(number_text(row.value, DIGITS) for row in rows)


def _least(rows: Sequence[EvidenceRow]) -> EvidenceRow:
    return min(rows, key=lambda row: row.value)


def _counted(count: int, operands: Sequence[EvidenceRow]) -> Estimate:
    return Estimate(count, 0, operands=tuple(row.key for row in operands), how="count")


def _distinct(rows: Sequence[Rows]) -> Cell:
    """Return the number of distinct rows, and the number of all."""
    operands = [row for cells in rows for row in cells]
    counts = {"n": _counted(len(set(map(_digits, rows))), operands), "all": _counted(len(rows), operands)}
    return message("{n} distinct among {all}", **counts) if rows else None


def _extent(rows: Rows) -> Cell:
    if not rows:
        return None
    low, high = _least(rows), max(rows, key=lambda row: row.value)
    return message("{low} to {high}", low=level(low, 5), high=level(high, 5))
