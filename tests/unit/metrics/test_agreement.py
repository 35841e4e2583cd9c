from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from lever_pipe.base.shapes import ShapeError
from lever_pipe.metrics.agreement import ENDED, equal_selections, padded_selections

# Few ids, so that agreement by chance is common.
SELECTIONS = arrays(np.int64, st.tuples(*(st.integers(1, n) for n in (4, 6, 3))), elements=st.integers(0, 2))


def test_the_shares_by_hand() -> None:
    # Query 1: all alike. Query 2: the second turns the first round, the third shares the first position.
    selections = np.array([[[1, 2], [3, 4]], [[1, 2], [4, 3]], [[1, 2], [3, 9]]])
    assert equal_selections(selections, 2).tolist() == [[1, 0.5, 0.5], [0.5, 1, 0.5], [0.5, 0.5, 1]]
    assert equal_selections(selections, 1).tolist() == [[1, 0.5, 1], [0.5, 1, 0.5], [1, 0.5, 1]]


@given(SELECTIONS)
def test_the_shares_equal_a_loop_over_every_two_policies(selections: NDArray[np.int64]) -> None:
    policies, queries, most = selections.shape
    for shots in range(1, most + 1):
        found = equal_selections(selections, shots)
        for i in range(policies):
            for j in range(policies):
                pairs = [(selections[i, q, :shots].tolist(), selections[j, q, :shots].tolist()) for q in range(queries)]
                assert found[i, j] == sum(a == b for a, b in pairs) / queries


@given(SELECTIONS, st.randoms(use_true_random=False))
def test_neither_the_order_of_queries_nor_the_names_of_demonstrations_matter(
    selections: NDArray[np.int64], source: random.Random
) -> None:
    queries = list(range(selections.shape[1]))
    source.shuffle(queries)
    for shots in range(1, selections.shape[2] + 1):
        one, other = (equal_selections(of, shots) for of in (selections, 7 - 2 * selections[:, queries, :]))
        assert (one == other).all()


@pytest.mark.parametrize(("shape", "shots"), [((2, 3), 1), ((2, 0, 3), 1), ((2, 4, 3), 0), ((2, 4, 3), 4)])
def test_another_shape_is_refused(shape: tuple[int, ...], shots: int) -> None:
    with pytest.raises(ShapeError, match=r"\[P, N, S\]"):
        equal_selections(np.zeros(shape, dtype=np.int64), shots)


def test_short_selections_are_filled_behind_their_ends() -> None:
    assert padded_selections([[4, 2, 7], [5], []], 2).tolist() == [[4, 2], [5, ENDED], [ENDED, ENDED]]
    assert padded_selections([], 3).shape == (0, 3)
