"""Accuracy by kind of question: where the selector loses against the oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lever_pipe.base.records import Example
from lever_pipe.report.inference.estimates import Draws, accuracies
from lever_pipe.report.inference.per_question import GroupScores
from lever_pipe.world.lexicon import RELATIONS

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
    for by, kind in ((by, kind) for by, kinds in ways.items() for kind in sorted(set(kinds))):
        chosen = np.array(ways[by]) == kind
        found = accuracies([group.over(chosen) for group in groups], draws, by, kind)
        n = int(chosen.sum())
        rows += [BreakdownRow(by, kind, name, column, *of[:3], n) for name, column, of in found]
    return rows


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
