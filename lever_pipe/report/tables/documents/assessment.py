"""Differences in words: ours by their adjusted p, published ones against a standard error; and trends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from lever_pipe.report.tables.evidence import Paired, p_text, separated
from lever_pipe.report.tables.results import standard_error
from lever_pipe.report.tables.text import listing

ASSESSMENT = (
    "Assessment of ours: separated where Holm p is below 0.05. Of published numbers: the size of a difference against "
    "one standard error of a difference, sqrt(e1^2 + e2^2) of the two accuracies as if they came from different "
    "questions; they share the questions, so it is no test."
)


@dataclass(frozen=True, slots=True)
class AccuracyGap:
    """Two accuracies in percent, each over the same number of questions; None where one is absent."""

    left: float | None
    right: float | None
    questions: int


def assess(gaps: Mapping[str, AccuracyGap]) -> str:
    """Return `below one standard error` or `above ...`, by name where the gaps differ; absent without a gap."""
    sides: dict[str, list[str]] = {}
    for name, gap in gaps.items():
        side = _side(gap)
        if side:
            sides.setdefault(side, []).append(name)
    if len(sides) == 1:
        return f"{next(iter(sides))} one standard error"
    return "; ".join(f"{listing(names)} {side} one standard error" for side, names in sides.items())


def separation(pairs: Mapping[str, Paired]) -> str:
    """Return `vs 0.15 not separated (p 0.412)`, by name; nothing without a comparison."""
    return "; ".join(
        f"{name} {'separated' if separated([pair]) else 'not separated'} (p {p_text(pair.p)})"
        for name, pair in pairs.items()
    )


def trend_text(values: Sequence[str]) -> str:
    """Return `rises`, `falls`, `equal`, or the turns as `rises, then falls`, of printed numbers in order.

    Absent ones are passed over; fewer than two numbers have no trend. A level stretch beside a slope adds no word.
    """
    known = [float(value) for value in values if value]
    if len(known) < 2:
        return ""
    slopes = ["rises" if after > before else "falls" for before, after in pairwise(known) if after != before]
    return ", then ".join(slope for slope, _ in groupby(slopes)) or "equal"


def _side(gap: AccuracyGap) -> str:
    errors = [standard_error(value, gap.questions) for value in (gap.left, gap.right)]
    if gap.left is None or gap.right is None:
        return ""
    size = abs(gap.left - gap.right)
    return "above" if size > math.hypot(*(error for error in errors if error is not None)) else "below"
