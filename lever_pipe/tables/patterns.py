"""Why the published tables look as they do: one row for each pattern, with the fault that makes it.

A verdict is computed from the emulation by the criterion that its row states. A pattern whose numbers the
configuration does not make (too few betas, epochs or shots) has no row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lever_pipe.tables import choice_patterns as choices
from lever_pipe.tables import training_patterns as training
from lever_pipe.tables.pattern_study import Pattern, Study
from lever_pipe.tables.table import Table, frame_of
from lever_pipe.tables.text import sentences

MAKERS: tuple[Callable[[Study], list[Pattern]], ...] = (
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


def patterns(study: Study) -> list[Pattern]:
    """Return every pattern that the configuration can judge."""
    return [pattern for make in MAKERS for pattern in make(study)]


def line(pattern: Pattern) -> tuple[str, ...]:
    """Return a pattern's cells under `COLUMNS`."""
    numbers = (pattern.published, pattern.arm, pattern.with_fault, pattern.without)
    return pattern.id, pattern.statement, *numbers, pattern.criterion, pattern.verdict, pattern.remark


def pattern_table(found: Sequence[Pattern], notes: tuple[str, ...]) -> Table:
    """Return the patterns beside what the faults make of them."""
    rows = [dict(zip(HEADINGS, line(pattern)[1:], strict=True)) for pattern in found]
    n = sum(pattern.reproduced for pattern in found)
    return Table(
        id="why-patterns",
        document="why",
        title="Published patterns and the faults that make them",
        caption=sentences(
            f"Reproduced: {n} of {len(found)} patterns.",
            "Each verdict is computed by the criterion of its row; it is about digits, not about which beta is better.",
            "Rows of accuracies count as equal when all their printed cells are, at every sample and shot count.",
            "A dash means that the published files hold no such number.",
            "No inference about training variance: one seed.",
        ),
        frame=frame_of(rows, HEADINGS),
        notes=notes,
    )
