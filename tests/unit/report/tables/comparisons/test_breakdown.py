from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from lever_pipe.base.records import Example, ExampleId
from lever_pipe.report.inference.breakdown import REST, breakdown_rows, gaps, table, ways_of
from lever_pipe.report.inference.estimates import HOW_ONE_RUN, UNADJUSTED, Draws
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


def test_the_loss_is_shared_out_by_questions() -> None:
    policy = group("preset~p/rce/epoch~1", [[0, 0, 1, 1, 1, 1, 1, 0]])
    oracle = group("baseline/oracle", [[1, 1, 1, 1, 1, 1, 1, 1]])
    found = {gap.kind: gap for gap in gaps(policy, oracle, "sort", ["x"] * 4 + ["y"] * 4, DRAWS)}
    # of x 2 of 4 are lost, of y 1 of 4
    assert [found[kind].difference for kind in "xy"] == pytest.approx([-50, -25], abs=1e-9)
    assert [found[kind].share for kind in "xy"] == pytest.approx([2 / 3, 1 / 3], abs=1e-9)
    # signs of two equal differences: p = 1/2; of one: 1; Holm doubles the smaller
    assert [found[kind].p_holm for kind in "xy"] == pytest.approx([1.0, 1.0], abs=1e-9)


def test_a_kind_on_which_nothing_differs_has_an_interval_with_a_width() -> None:
    policy, oracle = group("preset~p/rce/epoch~1", [[1] * 8 + [0, 1]]), group("baseline/oracle", [[1] * 10])
    found = {gap.kind: gap for gap in gaps(policy, oracle, "sort", ["x"] * 8 + ["y"] * 2, DRAWS)}
    exact = 100 * (1 - 0.025 ** (1 / 8))
    assert (found["x"].low, found["x"].high) == pytest.approx((-exact, exact), abs=1e-9)
    assert found["y"].high > 0  # one of two questions lost does not exclude a gain
    rows = breakdown_rows([policy, oracle], {"sort": ["x"] * 8 + ["y"] * 2}, DRAWS)
    caption = table("sort", rows, list(found.values()), policy.name).caption
    assert HOW_ONE_RUN in caption
    assert UNADJUSTED in caption


def test_the_table_begins_with_the_largest_loss() -> None:
    policy = group("preset~p/rce/epoch~1", [[1, 1, 1, 0, 0, 0, 0, 1]])
    oracle = group("baseline/oracle", [[1] * 8])
    kinds = ["a"] * 4 + ["b"] * 4
    rows = breakdown_rows([policy, oracle], {"sort": kinds}, DRAWS)
    found = table("sort", rows, gaps(policy, oracle, "sort", kinds, DRAWS), policy.name)
    assert list(found.frame["Sort"]) == ["b", "a"]
    assert list(found.frame["Share of the loss (%)"]) == ["75", "25"]
    assert "RCE epoch 1 minus the pool oracle over all questions: -50.00 points." in found.caption
    assert "The largest share comes from sort `b`: 75 %." in found.caption


def test_without_a_loss_nothing_is_shared() -> None:
    policy, oracle = (group(name, [[1, 0, 1, 0]]) for name in ("preset~p/rce/epoch~1", "baseline/oracle"))
    found = gaps(policy, oracle, "sort", ["x", "x", "y", "y"], DRAWS)
    assert all(math.isnan(gap.share) for gap in found)
    assert (
        "The largest share"
        not in table(
            "sort", breakdown_rows([policy], {"sort": ["x", "x", "y", "y"]}, DRAWS), found, policy.name
        ).caption
    )
