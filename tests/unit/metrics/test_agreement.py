from __future__ import annotations

import math

import numpy as np
import pytest

from lever_pipe.metrics.agreement import Agreement, selection_agreement
from lever_pipe.seeding import generator
from lever_pipe.shapes import ShapeError


def test_by_hand() -> None:
    # Query 1 alike; 2 the same pair turned round; 3 the first only; 4 nothing.
    first = np.array([[1, 2], [3, 4], [5, 6], [7, 8]])
    second = np.array([[1, 2], [4, 3], [5, 9], [8, 10]])
    assert selection_agreement(first, second) == Agreement((0.5, 0.25), 0.25, 0.5)


def test_sets_count_multiplicity() -> None:
    assert selection_agreement(np.array([[1, 1, 2]]), np.array([[1, 2, 2]])).as_sets == 0.0


def test_agrees_with_the_slow_definition() -> None:
    random = generator(0, "agreement")
    first, second = (random.integers(0, 3, size=(200, 3)) for _ in range(2))
    found = selection_agreement(first, second)
    pairs = list(zip(first.tolist(), second.tolist(), strict=True))
    assert found.ordered == sum(a == b for a, b in pairs) / 200
    assert found.as_sets == sum(sorted(a) == sorted(b) for a, b in pairs) / 200
    for s in range(3):
        assert found.per_position[s] == sum(a[s] == b[s] for a, b in pairs) / 200
    assert found.ordered < found.as_sets


def test_a_policy_agrees_with_itself_and_nothing_with_nothing() -> None:
    selections = np.array([[1, 2], [3, 4]])
    assert selection_agreement(selections, selections) == Agreement((1.0, 1.0), 1.0, 1.0)
    assert math.isnan(selection_agreement(np.zeros((0, 2)), np.zeros((0, 2))).ordered)


def test_shapes_are_checked() -> None:
    with pytest.raises(ShapeError, match=r"\[N, S\] alike"):
        selection_agreement(np.zeros((2, 2)), np.zeros((2, 3)))
    with pytest.raises(ShapeError, match=r"\[N, S\] alike"):
        selection_agreement(np.zeros(2), np.zeros(2))
