"""Accuracy by kind of question: where the selector loses against the oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lever_pipe.base.records import Example
from lever_pipe.report.tables.comparisons.estimates import UNADJUSTED, Draws, differences, means, method_of, sides_of
from lever_pipe.report.tables.comparisons.per_question import GroupScores
from lever_pipe.report.tables.evidence import MEAN, Interval, p_text
from lever_pipe.report.tables.policies import label_of
from lever_pipe.report.tables.table import Table, frame_of
from lever_pipe.report.tables.text import number, sentences, signed
from lever_pipe.statistics.comparison import holm
from lever_pipe.world.data.lexicon import RELATIONS

FEW_QUESTIONS = 5
"""Kinds of fewer questions are drawn together."""
REST = "fewer than 5 questions"
OTHER = "other"
OKVQA_CATEGORIES = {
    "one": "vehicles and transportation",
    "two": "brands, companies and products",
    "three": "objects, material and clothing",
    "four": "sports and recreation",
    "five": "cooking and food",
    "six": "geography, history, language and culture",
    "seven": "people and everyday life",
    "eight": "plants and animals",
    "nine": "science and technology",
    "ten": "weather and climate",
    "other": "other",
}
"""What OK-VQA's annotations call their question types."""

Ways = Mapping[str, Sequence[str]]
"""For each way to sort questions, the kind of each question."""


class BreakdownRow(NamedTuple):
    """A line of `breakdown.csv`: an accuracy in percent over the questions of one kind."""

    by: str
    kind: str
    group: str
    shots: str
    accuracy: float
    low: float
    high: float
    n_questions: int


class Gap(NamedTuple):
    """How far a policy lies behind the oracle on one kind: points at the mean over shots, share of all points lost."""

    kind: str
    n_questions: int
    difference: float
    low: float
    high: float
    p_holm: float
    share: float
    test: str


def ways_of(examples: Sequence[Example], *, is_world: bool) -> dict[str, list[str]]:
    """Return how questions can be sorted: by relation and query type in the embedded world, else by question type.

    A kind of a few questions only is drawn together with others of its sort.
    """
    types = [example.question_type for example in examples]
    if not is_world:
        names = OKVQA_CATEGORIES if set(types) <= OKVQA_CATEGORIES.keys() else {}
        return {"question type": _large_enough([names.get(name, name) for name in types])}
    relations = [name.split(":")[0] for name in types]
    sorts = {relation.name: "knowledge" if relation.is_knowledge else "perception" for relation in RELATIONS}
    return {
        "relation": _large_enough(relations),
        "query type": _large_enough([sorts.get(name, OTHER) for name in relations]),
    }


def breakdown_rows(groups: Sequence[GroupScores], ways: Ways, draws: Draws) -> list[BreakdownRow]:
    """Return the accuracy of each group on each kind of question, at every shot count and their mean."""
    rows = []
    for by, kinds in ways.items():
        for kind, chosen in _chosen(kinds):
            blocks = [group.accuracies[:, chosen] for group in groups]
            found = iter(means(blocks, draws, by, kind))
            for group in groups:
                for column in group.columns:
                    value, low, high = (100 * number for number in next(found)[:3])
                    rows.append(BreakdownRow(by, kind, group.name, column, value, low, high, int(chosen.sum())))
    return rows


def gaps(policy: GroupScores, oracle: GroupScores, by: str, kinds: Sequence[str], draws: Draws) -> list[Gap]:
    """Return how far `policy` lies behind the oracle on each kind of question, p values adjusted for the kinds."""
    column = policy.columns.index(MEAN)
    found = []
    for kind, chosen in _chosen(kinds):
        of = differences([sides_of(policy, oracle, chosen)], draws, by, kind)[0][column]
        points = (100 * of.value, 100 * of.low, 100 * of.high)
        found.append(Gap(kind, int(chosen.sum()), *points, of.p, 0.0, of.test))
    adjusted = holm([gap.p_holm for gap in found])
    lost = sum(gap.n_questions * gap.difference for gap in found)
    return [
        gap._replace(p_holm=float(p), share=gap.n_questions * gap.difference / lost if lost else float("nan"))
        for gap, p in zip(found, adjusted, strict=True)
    ]


def table(by: str, rows: Iterable[BreakdownRow], lost: Sequence[Gap], policy: str) -> Table:
    """Return the accuracies of one way to sort, mean over shots, a row a kind, most points lost first.

    Args:
        by: the way to sort.
        rows: of `breakdown.csv`; those of other ways and shot counts are passed over.
        lost: what `policy` loses against the oracle on each kind.
        policy: name of the group that is held against the oracle.
    """
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        if (row.by, row.shots) == (by, MEAN):
            text = Interval(row.accuracy, row.low, row.high, 0).text()
            cells.setdefault(row.kind, {})[label_of(row.group)] = text
    heading, difference = by.capitalize(), f"{label_of(policy)} minus oracle"
    lines = [
        {
            heading: gap.kind,
            "Questions": str(gap.n_questions),
            **cells[gap.kind],
            difference: Interval(gap.difference, gap.low, gap.high, 0).text(),
            "Holm p": p_text(gap.p_holm),
            "Share of the loss (%)": number(100 * gap.share, 0),
        }
        for gap in sorted(lost, key=lambda gap: (gap.n_questions * gap.difference, gap.kind))
    ]
    labels = dict.fromkeys(label for of_kind in cells.values() for label in of_kind)
    columns = [heading, "Questions", *labels, difference, "Holm p", "Share of the loss (%)"]
    return Table(
        f"breakdown-{by.replace(' ', '-')}",
        "statistics",
        f"Accuracy by {by}",
        _caption(by, lost, label_of(policy)),
        frame_of(lines, columns),
    )


def _caption(by: str, lost: Sequence[Gap], policy: str) -> str:
    n = sum(gap.n_questions for gap in lost)
    total = sum(gap.n_questions * gap.difference for gap in lost) / n
    worst = min(lost, key=lambda gap: (gap.n_questions * gap.difference, gap.kind))
    return sentences(
        f"VQA accuracy in percent, mean over shots, {n} questions.",
        "In brackets: 95 % interval; a difference is paired over the same questions.",
        f"{policy} minus the pool oracle over all questions: {signed(total, 2)} points.",
        f"The largest share comes from {by} `{worst.kind}`: {number(100 * worst.share, 0)} %." if total < 0 else "",
        f"Holm p: adjusted for the {len(lost)} rows.",
        UNADJUSTED if len(lost) > 1 else "",
        method_of(gap.test for gap in lost),
        "Share of the loss: of the points lost over all questions; a negative one is a gain.",
    )


def _chosen(kinds: Sequence[str]) -> list[tuple[str, NDArray[np.bool_]]]:
    return [(kind, np.array([of == kind for of in kinds])) for kind in sorted(set(kinds))]


def _large_enough(kinds: Sequence[str]) -> list[str]:
    """Return the kinds with the small ones under one name; a rest that is too small itself takes the next smallest."""
    counts = sorted(Counter(kinds).items(), key=lambda item: (item[1], item[0]))
    drawn: set[str] = set()
    together = 0
    for kind, count in counts:
        if count >= FEW_QUESTIONS and (not drawn or together >= FEW_QUESTIONS):
            break
        drawn.add(kind)
        together += count
    return [REST if kind in drawn else kind for kind in kinds]
