"""Why the published tables look as they do: one row for each pattern, with the fault that makes it.

A verdict is computed from the emulation by the criterion that its row states. A pattern whose numbers the
configuration does not make (too few betas, epochs or shots) has no row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lever_pipe.report.tables.explanations import choice_patterns as choices
from lever_pipe.report.tables.explanations import training_patterns as training
from lever_pipe.report.tables.explanations.pattern_study import (
    REPRODUCED,
    UNDEFINED,
    UNSPECIFIC,
    EmulatedStudy,
    Pattern,
)
from lever_pipe.report.tables.table import Table, frame_of
from lever_pipe.report.tables.text import ABSENT, sentences

MAKERS: tuple[Callable[[EmulatedStudy], list[Pattern]], ...] = (
    choices.identical_rows,
    choices.identical_choices,
    choices.repeats,
    choices.reused_rows,
    training.kl_without_update,
    training.kl_falls,
    training.ratio,
    choices.one_beta_apart,
    training.advantages,
)
COLUMNS = ("pattern", "statement", "published", "arm", "with_fault", "without_fault", "criterion", "verdict", "remark")
HEADINGS = ("Published pattern", "Published", "Arm", "With the fault", "Without", "Criterion", "Verdict", "Remark")


def patterns(study: EmulatedStudy) -> list[Pattern]:
    """Return every pattern that the configuration can judge."""
    return [pattern for make in MAKERS for pattern in make(study)]


def line(pattern: Pattern) -> tuple[str, ...]:
    """Return a pattern's cells under `COLUMNS`."""
    numbers = (pattern.published, pattern.arm, pattern.with_fault, pattern.without)
    return pattern.id, pattern.statement, *numbers, pattern.criterion, pattern.verdict, pattern.remark


def tally(found: Sequence[Pattern]) -> tuple[str, str]:
    """Return how many published statements some fault reproduces, and how many are no evidence of a fault.

    A statement counts once, however many arms are tried, and as reproduced when one of them reproduces it.
    """
    verdicts: dict[str, set[str]] = {}
    for pattern in found:
        verdicts.setdefault(pattern.statement, set()).add(pattern.verdict if pattern.published else ABSENT)
    reproduced = sum(REPRODUCED in of for of in verdicts.values())
    unpublished = sum(ABSENT in of for of in verdicts.values())
    unspecific = sum(UNSPECIFIC in of and REPRODUCED not in of for of in verdicts.values())
    undefined = sum(UNDEFINED in of for of in verdicts.values())
    n = len(verdicts) - unpublished - unspecific - undefined
    told = f"{unspecific} that hold also without the fault, {unpublished} without a published number"
    return (
        f"Reproduced: {reproduced} of {n} published statements.",
        f"Set aside: {told}, {undefined} not defined here." if undefined else f"Set aside: {told}.",
    )


def pattern_table(study: EmulatedStudy, found: Sequence[Pattern], notes: tuple[str, ...]) -> Table:
    """Return the patterns beside what the faults make of them, led by how many are reproduced."""
    rows = [dict(zip(HEADINGS, line(pattern)[1:], strict=True)) for pattern in found]
    return Table(
        id="why-patterns",
        document="why",
        title="Published patterns and the faults that make them",
        lead=sentences(*tally(found), choices.coincidences(study)),
        caption=sentences(
            "Each verdict is computed by the criterion of its row; it is about digits, not about which beta is better.",
            f"Rows of accuracies are compared at {study.row_samples} samples, for the betas and epochs that were "
            "published; they count as equal when all their printed cells are.",
            "A dash means that the published files hold no such number.",
            "No inference about training variance: one seed.",
        ),
        frame=frame_of(rows, HEADINGS),
        notes=notes,
    )
