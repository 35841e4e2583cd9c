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

from lever_pipe.experiment.emulation import CONTROL
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


def evaluate(claim: Claim, context: ReportContext) -> EvaluatedClaim | None:
    """Return a pattern with its verdict; without the bug, a pattern that occurs in part counts as present."""
    study = emulation_of(context)
    if study is None:
        return None
    published, bug, control = (PATTERNS[claim.kind](study, arm) for arm in (PUBLISHED, claim.bug, CONTROL))
    if bug is None or control is None:
        return None
    also = control.holds if control.in_part is None else control.in_part
    verdict = NOT_REPRODUCED if not bug.holds else WITHOUT_BUG if also else REPRODUCED
    given = {
        "betas": study.others,
        "shots": list(map(str, _long(study))),
        "most": _most(study),
        "beta": OF_ANOTHER_BASE,
    }
    theirs = Finding(None, None if published is None else published.cell)
    return EvaluatedClaim(claim, theirs, Finding(verdict, bug.cell), control.cell, given)


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


def _identical_rows(study: EmulatedStudy, arm: str) -> Appearance | None:
    """The betas of one base agree in every published cell."""
    if len(study.others) < 2:
        return None
    candidates = [(beta, epoch) for beta in study.others for epoch in study.epochs]
    published = [run for run in candidates if study.cells(PUBLISHED, run)]
    rows = [cells for run in published or candidates if (cells := study.cells(arm, run))]
    return Appearance(_distinct(rows), len(set(map(_digits, rows))) == 1)


def _long(study: EmulatedStudy) -> list[int]:
    """Return the shot counts that exceed the number of offered items."""
    return [k for k in study.context.shots if k > study.emulate.pool_items]


def _repeats(study: EmulatedStudy, arm: str) -> Appearance | None:
    """Long prompts repeat demonstrations; nothing is published about it."""
    if arm == PUBLISHED or not _long(study):
        return None
    rows = [study.evidence.get(f"emulation/{arm}", "repeated_share", shots=k) for k in _long(study)]
    mean = derived(100 * fmean(row.value for row in rows), 1, rows, "mean, in percent")
    shares = [row.value for row in rows]
    return Appearance(mean and replace(mean, unit=" %"), min(shares) == 1, max(shares) > 0)


def _most(study: EmulatedStudy) -> int:
    """Return the largest number of prompts of a query that the offered items allow."""
    return sum(perm(study.emulate.pool_items, min(k, study.emulate.pool_items)) for k in study.context.shots)


def _few_prompts(study: EmulatedStudy, arm: str) -> Appearance | None:
    """All checkpoints together make few prompts of a query; nothing is published about it."""
    if arm == PUBLISHED:
        return None
    row = study.evidence.get(f"emulation/{arm}", "prompts_a_query_max")
    return Appearance(level(row, 0), row.value <= _most(study))


def _reused_rows(study: EmulatedStudy, arm: str) -> Appearance | None:
    """Two epochs of one beta differ at few shots and agree at many."""
    spans = [[k for k in study.context.shots if (k > 2) == more] for more in (False, True)]
    beta, samples = OF_ANOTHER_BASE, study.context.samples
    if not (all(spans) and 2 in study.epochs and beta in study.emulate.kl_betas):
        return None
    pairs = [[study.cells(arm, (beta, epoch), samples, k, ACCURACY_015) for epoch in (1, 2)] for k in spans]
    if not all(map(all, pairs)):
        return None
    texts, counts = [], []
    for pair in pairs:
        rows = [row for cells in pair for row in cells]
        n = sum(a != b for a, b in zip(*map(_digits, pair), strict=True))
        texts.append(message("{n} of {all}", n=_counted(n, rows), all=_counted(len(rows) // 2, rows)))
        counts.append(n)
    return Appearance(texts, counts[0] > 0 == counts[1])


def _kl_without_update(study: EmulatedStudy, arm: str) -> Appearance | None:
    """A KL near the logged one appears without an update."""
    published = study.printed("kl", 1)
    if not published:
        return None
    low, high = (pick(published, key=lambda row: row.value) for pick in (min, max))
    if arm == PUBLISHED:
        return Appearance(message("{low} to {high}", low=level(low, 5), high=level(high, 5)), True)
    row = study.untouched(arm, "kl", 1)
    return Appearance(level(row, 5), low.value / 2 <= row.value <= 2 * high.value)


def _falling_kl(study: EmulatedStudy, arm: str) -> Appearance | None:
    """KL falls from epoch to epoch; the published one is the mean over the betas that have both epochs."""
    if not study.printed("kl", 1):
        return None
    if arm != PUBLISHED:
        first, later = (study.untouched(arm, "kl", epoch) for epoch in (1, 2))
        return Appearance((level(first, 5), level(later, 5)), later.value < first.value)
    runs = [[row for epoch in (1, 2) for row in study.printed("kl", epoch, [beta])] for beta in study.emulate.kl_betas]
    whole = zip(*(run for run in runs if len(run) == 2), strict=True)
    course = (derived(fmean(row.value for row in rows), 5, rows, "mean over KL_BETA") for rows in whole)
    return Appearance(tuple(course) or None, True)


PATTERNS: Mapping[str, Callable[[EmulatedStudy, str], Appearance | None]] = {
    "identical rows": _identical_rows,
    "repeats": _repeats,
    "few prompts": _few_prompts,
    "reused rows": _reused_rows,
    "KL without update": _kl_without_update,
    "falling KL": _falling_kl,
}
"""By the kind of a claim: the outcome of an arm, or of the published numbers. None: it cannot be judged."""


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
