"""Patterns in the published tables that an emulated bug may cause: one kind of check each.

A verdict follows from the criterion of its check, not from visual inspection. A pattern that also occurs without the
bug is no evidence for it. A pattern is omitted if the configuration does not produce its numbers (too few betas, epochs
or shots).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import perm
from statistics import fmean
from typing import Any, NamedTuple

from lever_pipe.experiment.evaluation_config import CONTROL
from lever_pipe.report.cells import Cell, Estimate, code, derived, level, message
from lever_pipe.report.claims import Claim, EvaluatedClaim, Finding
from lever_pipe.report.context import ReportContext
from lever_pipe.report.evidence import EvidenceRow
from lever_pipe.report.format import number_text
from lever_pipe.report.selector.emulation import (
    DIGITS,
    OF_ANOTHER_BASE,
    PUBLISHED,
    EmulatedStudy,
    Rows,
    emulation_of,
)
from lever_pipe.report.selector.sides import ACCURACY_015
from lever_pipe.report.table import Table, framed
from lever_pipe.report.verdicts import NOT_REPRODUCED, REPRODUCED, WITHOUT_BUG


class Appearance(NamedTuple):
    """The outcome of an arm: its cell, whether the pattern occurs, and whether it occurs in part, if that differs."""

    cell: Cell
    holds: bool
    in_part: bool | None = None


class Pattern(NamedTuple):
    """A published pattern: its cell, a function that looks for it in an arm, and the arguments of its sentence."""

    published: Cell
    find: Callable[[str], Appearance]
    given: Mapping[str, Any] = {}


def evaluate(claim: Claim, context: ReportContext) -> EvaluatedClaim | None:
    """Return a pattern with its verdict; without the bug, a pattern that occurs in part counts as present."""
    study = emulation_of(context)
    pattern = None if study is None else PATTERNS[claim.kind](study)
    if pattern is None:
        return None
    bug, control = pattern.find(claim.bug), pattern.find(CONTROL)
    also = control.holds if control.in_part is None else control.in_part
    verdict = NOT_REPRODUCED if not bug.holds else WITHOUT_BUG if also else REPRODUCED
    ours = Finding(verdict, bug.cell)
    return EvaluatedClaim(claim, Finding(None, pattern.published), ours, control.cell, pattern.given)


def tables(context: ReportContext) -> Iterator[Table]:
    """Yield the patterns."""
    study, evaluated = emulation_of(context), context.claims_of("patterns")
    if study is None:
        return
    rows = [
        {
            "Published pattern": message(each.claim.quote, **each.given),
            "Published": each.published.numbers,
            "Bug": code(each.claim.bug),
            "With it": each.ours.numbers,
            "Without": each.control,
            "Verdict": each.ours.verdict,
        }
        for each in evaluated
    ]
    facts = {**tally(evaluated), **coincidences(study)}
    yield Table("patterns", "why", "Published patterns, and the bugs that make them", framed(rows), facts)


def coincidences(study: EmulatedStudy) -> dict[str, Any]:
    """Return the epochs whose betas all have the same accuracies by training alone, without any bug."""
    betas = study.emulate.kl_betas
    epochs = [e for e in study.epochs if len({_digits(study.cells(CONTROL, (beta, e))) for beta in betas}) == 1]
    facts = {"samples": study.context.document_samples, "n": len(betas), "preset": study.emulate.preset}
    return {"epochs": [str(epoch) for epoch in epochs], **facts}


def tally(evaluated: Sequence[EvaluatedClaim]) -> dict[str, Estimate]:
    """Return the number of published statements that a bug reproduces; a statement counts once for all its bugs."""
    found: dict[str, set[Cell]] = {}
    for each in evaluated:
        # A pattern without published numbers is set aside.
        found.setdefault(each.claim.quote, set()).add("" if each.published.numbers is None else each.ours.verdict)
    reproduced = sum(REPRODUCED in results for results in found.values())
    aside = sum(not results & {REPRODUCED, NOT_REPRODUCED} for results in found.values())
    counts = {"reproduced": reproduced, "all": len(found) - aside, "aside": aside}
    return {name: _counted(value, ()) for name, value in counts.items()}


def _identical_rows(study: EmulatedStudy) -> Pattern | None:
    """The betas of one base agree in every published cell."""
    if len(study.others) < 2:
        return None
    candidates = [(beta, epoch) for beta in study.others for epoch in study.epochs]
    published = {run: printed for run in candidates if (printed := study.cells(PUBLISHED, run))}

    def find(arm: str) -> Appearance:
        rows = [study.cells(arm, run) for run in published or candidates]
        return Appearance(_distinct(rows), len(set(map(_digits, rows))) == 1)

    return Pattern(_distinct(list(published.values())), find, {"betas": study.others})


def _repeats(study: EmulatedStudy) -> Pattern | None:
    """Long prompts repeat demonstrations."""
    long = [k for k in study.context.shots if k > study.emulate.pool_items]

    def find(arm: str) -> Appearance:
        rows = [study.evidence.get(f"emulation/{arm}", "repeated_share", shots=k) for k in long]
        mean = derived(100 * fmean(row.value for row in rows), 1, rows, "mean, in percent")
        shares = [row.value for row in rows]
        return Appearance(mean and replace(mean, unit=" %"), min(shares) == 1, max(shares) > 0)

    return Pattern(None, find, {"shots": [str(k) for k in long]}) if long else None


def _few_prompts(study: EmulatedStudy) -> Pattern:
    """All checkpoints together make few prompts of a query."""
    items = study.emulate.pool_items
    most = sum(perm(items, min(k, items)) for k in study.context.shots)

    def find(arm: str) -> Appearance:
        row = study.evidence.get(f"emulation/{arm}", "prompts_a_query_max")
        return Appearance(level(row, 0), row.value <= most)

    return Pattern(None, find, {"most": most})


def _reused_rows(study: EmulatedStudy) -> Pattern | None:
    """Two epochs of one beta differ at few shots and agree at many."""
    spans = [[k for k in study.context.shots if (k > 2) == more] for more in (False, True)]
    beta, samples = OF_ANOTHER_BASE, study.context.samples
    if not (all(spans) and 2 in study.epochs and beta in study.emulate.kl_betas):
        return None

    def outcome(pairs: Sequence[Sequence[Rows]]) -> Appearance:
        few, many = (sum(a != b for a, b in zip(*map(_digits, pair), strict=True)) for pair in pairs)
        rows = [[row for cells in pair for row in cells] for pair in pairs]
        texts = [
            message("{n} of {all}", n=_counted(n, operands), all=_counted(len(operands) // 2, operands))
            for n, operands in zip((few, many), rows, strict=True)
        ]
        return Appearance(texts, few > 0 == many)

    def pairs_of(arm: str, file: str = "") -> list[list[Rows]]:
        return [[study.cells(arm, (beta, epoch), samples, k, file) for epoch in (1, 2)] for k in spans]

    printed = pairs_of(PUBLISHED, ACCURACY_015)
    published = outcome(printed).cell if all(map(all, printed)) else None
    return Pattern(published, lambda arm: outcome(pairs_of(arm)), {"beta": beta})


def _kl_without_update(study: EmulatedStudy) -> Pattern | None:
    """A KL near the logged one appears without an update."""
    published = study.printed("kl", 1)
    if not published:
        return None
    ends = [pick(published, key=lambda row: row.value) for pick in (min, max)]

    def find(arm: str) -> Appearance:
        row = study.untouched(arm, "kl", 1)
        return Appearance(level(row, 5), ends[0].value / 2 <= row.value <= 2 * ends[1].value)

    low, high = (level(row, 5) for row in ends)
    return Pattern(message("{low} to {high}", low=low, high=high), find)


def _falling_kl(study: EmulatedStudy) -> Pattern | None:
    """KL falls from epoch to epoch; the published one is the mean over the betas that have both epochs."""
    if not study.printed("kl", 1):
        return None
    runs = [[row for epoch in (1, 2) for row in study.printed("kl", epoch, [beta])] for beta in study.emulate.kl_betas]
    whole = zip(*(run for run in runs if len(run) == 2), strict=True)
    course = [derived(fmean(row.value for row in rows), 5, rows, "mean over KL_BETA") for rows in whole]

    def find(arm: str) -> Appearance:
        first, later = (study.untouched(arm, "kl", epoch) for epoch in (1, 2))
        return Appearance((level(first, 5), level(later, 5)), later.value < first.value)

    return Pattern(tuple(course) or None, find)


PATTERNS: Mapping[str, Callable[[EmulatedStudy], Pattern | None]] = {
    "identical rows": _identical_rows,
    "repeats": _repeats,
    "few prompts": _few_prompts,
    "reused rows": _reused_rows,
    "KL without update": _kl_without_update,
    "falling KL": _falling_kl,
}
"""By the kind of a claim."""


def _digits(rows: Rows) -> tuple[str, ...]:
    """Return accuracies as printed, to compare rows."""
    return tuple(number_text(row.value, DIGITS) for row in rows)


def _counted(count: int, operands: Sequence[EvidenceRow]) -> Estimate:
    return Estimate(count, 0, operands=tuple(row.key for row in operands), how="count")


def _distinct(rows: Sequence[Rows]) -> Cell:
    """Return the number of distinct rows, and the number of all."""
    operands = [row for cells in rows for row in cells]
    counts = {"n": _counted(len(set(map(_digits, rows))), operands), "all": _counted(len(rows), operands)}
    return message("{n} distinct among {all}", **counts) if rows else None
