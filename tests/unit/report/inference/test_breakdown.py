from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from lever_pipe.base.records import Example, ExampleId
from lever_pipe.report.inference.breakdown import REST, breakdown_rows, ways_of
from lever_pipe.report.inference.estimates import Draws
from lever_pipe.report.inference.per_question import GroupScores, with_mean

DRAWS = Draws(seed=0, n_resamples=400)


def examples(*types: str) -> list[Example]:
    common = {"question_id": 1, "image_id": 1, "image": "x", "image_digest": "0", "question": "?", "answers": ("a",)}
    return [Example(example_id=ExampleId(i), question_type=t, answer="a", **common) for i, t in enumerate(types)]


def group(name: str, answers: list[list[int]]) -> GroupScores:
    """Return a group of one run a row of answers, at one shot count and its mean."""
    values = np.stack([with_mean(np.array(run, dtype=float)[:, None]) for run in answers])
    runs = [f"preset~p/rce/seed~{i}/epoch~1" if name.startswith("preset") else name for i in range(len(answers))]
    return GroupScores(name, tuple(runs), ("1", "mean"), values)


def test_relations_of_the_world_and_what_they_ask_for() -> None:
    types = ["material:ring"] * 5 + ["count:one"] * 6 + ["colour of another world:x"] * 5
    ways = ways_of(examples(*types), is_world=True)
    assert list(ways) == ["relation", "query type"]
    assert ways["relation"] == ["material"] * 5 + ["count"] * 6 + ["colour of another world"] * 5
    assert ways["query type"] == ["knowledge"] * 5 + ["perception"] * 6 + ["other"] * 5


def test_okvqa_says_its_categories_by_number() -> None:
    ways = ways_of(examples(*["one"] * 5, *["ten"] * 5), is_world=False)
    assert ways == {"question type": ["vehicles and transportation"] * 5 + ["weather and climate"] * 5}
    assert ways_of(examples(*["how many"] * 5), is_world=False) == {"question type": ["how many"] * 5}


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"a": 9, "b": 4, "c": 3}, {"a": 9, REST: 7}),
        ({"a": 9, "b": 6, "c": 1}, {"a": 9, REST: 7}),  # one question alone has no spread, so the next joins it
        ({"a": 9, "b": 6}, {"a": 9, "b": 6}),
        ({"a": 2, "b": 1}, {REST: 3}),
    ],
)
def test_small_kinds_are_drawn_together(counts: dict[str, int], expected: dict[str, int]) -> None:
    types = [kind for kind, count in counts.items() for _ in range(count)]
    assert Counter(ways_of(examples(*types), is_world=False)["question type"]) == expected


def test_rows_hold_the_mean_of_their_kind() -> None:
    policy = group("preset~p/rce/epoch~1", [[1, 0, 1, 1, 0, 0], [1, 0, 0, 1, 1, 0]])
    rows = breakdown_rows([policy], {"sort": ["x", "x", "x", "y", "y", "y"]}, DRAWS)
    assert [(row.kind, row.shots, row.n_questions) for row in rows] == [
        ("x", "1", 3),
        ("x", "mean", 3),
        ("y", "1", 3),
        ("y", "mean", 3),
    ]
    # x: 1 0 1 and 1 0 0; y: 1 0 0 and 1 1 0
    assert [row.accuracy for row in rows] == pytest.approx([50, 50, 50, 50], abs=1e-9)
    assert all(0 <= row.low < row.accuracy < row.high <= 100 for row in rows)
