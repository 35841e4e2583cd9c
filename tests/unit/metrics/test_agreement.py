from __future__ import annotations

import math
import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from lever_pipe.base.shapes import ShapeError
from lever_pipe.metrics.agreement import (
    ENDED,
    ParameterDifference,
    agreement_matrices,
    clusters,
    padded_selections,
    parameter_differences,
)

# Few ids, so that agreement by chance is common.
SELECTIONS = arrays(np.int64, st.tuples(*(st.integers(1, n) for n in (4, 6, 3))), elements=st.integers(0, 2))
# Sums of squares of small whole numbers are exact in float64.
WHOLE = arrays(np.float32, (3, 2), elements=st.integers(-4, 4).map(float))


def test_sets_count_multiplicity() -> None:
    assert agreement_matrices(np.array([[[1, 1, 2]], [[1, 2, 2]]]), 3).as_set[0, 1] == 0.0


def test_the_matrices_by_hand() -> None:
    # Query 1: all alike. Query 2: the second turns the first round, the third shares the first position.
    selections = np.array([[[1, 2], [3, 4]], [[1, 2], [4, 3]], [[1, 2], [3, 9]]])
    both, one = agreement_matrices(selections, 2), agreement_matrices(selections, 1)
    assert both.as_sequence.tolist() == [[1, 0.5, 0.5], [0.5, 1, 0.5], [0.5, 0.5, 1]]
    assert both.as_set.tolist() == [[1, 1, 0.5], [1, 1, 0.5], [0.5, 0.5, 1]]
    assert both.at_position.tolist() == [[1, 0.5, 0.5], [0.5, 1, 0.5], [0.5, 0.5, 1]]
    expected = [[1, 0.5, 1], [0.5, 1, 0.5], [1, 0.5, 1]]
    assert one.as_sequence.tolist() == one.as_set.tolist() == one.at_position.tolist() == expected


@given(SELECTIONS)
def test_the_matrices_equal_a_loop_over_every_two_policies(selections: NDArray[np.int64]) -> None:
    policies, queries, most = selections.shape
    for shots in range(1, most + 1):
        found = agreement_matrices(selections, shots)
        for i in range(policies):
            for j in range(policies):
                rows = [(selections[p, q, :shots].tolist(), q) for p in (i, j) for q in range(queries)]
                pairs = [(rows[q][0], rows[queries + q][0]) for q in range(queries)]
                assert found.as_sequence[i, j] == sum(a == b for a, b in pairs) / queries
                assert found.as_set[i, j] == sum(sorted(a) == sorted(b) for a, b in pairs) / queries
                assert found.at_position[i, j] == sum(a[-1] == b[-1] for a, b in pairs) / queries


@given(SELECTIONS)
def test_matrices_are_symmetric_and_a_sequence_implies_the_set_and_the_position(selections: NDArray[np.int64]) -> None:
    found = agreement_matrices(selections, selections.shape[2])
    for matrix in (found.as_sequence, found.as_set, found.at_position):
        assert (matrix == matrix.T).all()
        assert (matrix.diagonal() == 1).all()
    assert (found.as_set >= found.as_sequence).all()
    assert (found.at_position >= found.as_sequence).all()


@given(SELECTIONS, st.randoms(use_true_random=False))
def test_neither_the_order_of_queries_nor_the_names_of_demonstrations_matter(
    selections: NDArray[np.int64], source: random.Random
) -> None:
    queries = list(range(selections.shape[1]))
    source.shuffle(queries)
    renamed = 7 - 2 * selections[:, queries, :]
    for shots in range(1, selections.shape[2] + 1):
        one, other = agreement_matrices(selections, shots), agreement_matrices(renamed, shots)
        assert (one.as_sequence == other.as_sequence).all()
        assert (one.as_set == other.as_set).all()
        assert (one.at_position == other.at_position).all()


@given(SELECTIONS)
def test_the_order_within_a_prompt_leaves_sets_alone(selections: NDArray[np.int64]) -> None:
    shots = selections.shape[2]
    turned = selections.copy()
    turned[0] = turned[0, :, ::-1]
    assert (agreement_matrices(turned, shots).as_set == agreement_matrices(selections, shots).as_set).all()


@pytest.mark.parametrize(("shape", "shots"), [((2, 3), 1), ((2, 0, 3), 1), ((2, 4, 3), 0), ((2, 4, 3), 4)])
def test_matrices_check_their_shape(shape: tuple[int, ...], shots: int) -> None:
    with pytest.raises(ShapeError, match=r"\[P, N, S\]"):
        agreement_matrices(np.zeros(shape, dtype=np.int64), shots)


def test_parameters_by_hand() -> None:
    base = {"a": np.array([3.0, 4.0], dtype=np.float32), "b": np.zeros((2, 2), dtype=np.float32)}
    values = {"a": np.array([3.0, 5.0], dtype=np.float32), "b": np.array([[0, 0], [-2, 2]], dtype=np.float32)}
    found = parameter_differences(values, base)
    assert found == {"a": ParameterDifference(2, 1, 1.0, 25.0), "b": ParameterDifference(4, 2, 8.0, 0.0)}
    assert (found["a"].share_differing, found["a"].norm, found["a"].relative_norm) == (0.5, 1.0, 0.2)
    assert math.isnan(found["b"].relative_norm)
    total = found["a"] + found["b"]
    assert total == ParameterDifference(6, 3, 9.0, 25.0)
    assert (total.share_differing, total.norm, total.relative_norm) == (0.5, 3.0, 0.6)


@given(WHOLE, WHOLE)
def test_parts_add_up_to_the_whole(values: NDArray[np.float32], base: NDArray[np.float32]) -> None:
    whole = parameter_differences({"x": values}, {"x": base})["x"]
    parts = parameter_differences(dict(enumerate_rows(values)), dict(enumerate_rows(base)))
    assert sum(parts.values(), start=ParameterDifference(0, 0, 0.0, 0.0)) == whole
    assert (whole.n_differing == 0) == (whole.norm == 0) == bool((values == base).all())
    # The norm does not see which of the two is the base.
    assert parameter_differences({"x": base}, {"x": values})["x"].squares == whole.squares


def enumerate_rows(values: NDArray[np.float32]) -> list[tuple[str, NDArray[np.float32]]]:
    return [(f"row {i}", row) for i, row in enumerate(values)]


def test_a_parameter_that_moves_by_the_last_bit_differs() -> None:
    base = np.ones(4, dtype=np.float32)
    moved = base.copy()
    moved[2] = np.nextafter(moved[2], np.float32(2))
    found = parameter_differences({"x": moved}, {"x": base})["x"]
    assert found.n_differing == 1
    assert found.norm == 2.0**-23  # one unit in the last place of 1 in float32
    assert parameter_differences({"x": base}, {"x": base})["x"] == ParameterDifference(4, 0, 0.0, 4.0)
    assert math.isnan(ParameterDifference(0, 0, 0.0, 0.0).share_differing)


def test_tensors_of_another_architecture_are_refused() -> None:
    base = {"a": np.zeros(2), "b": np.zeros(3)}
    for other in ({"a": np.zeros(2)}, {"a": np.zeros(2), "b": np.zeros((3, 1))}, {**base, "c": np.zeros(1)}):
        with pytest.raises(ShapeError, match=r"differ in [bc]$"):
            parameter_differences(other, base)


def test_clusters_by_hand() -> None:
    shares = np.eye(5)
    for i, j, share in ((0, 2, 0.99), (0, 4, 1.0), (2, 4, 0.999), (1, 3, 0.98), (3, 4, 1.0)):
        shares[i, j] = shares[j, i] = share
    # 3 and 4 agree fully, but 3 does not agree with 0 and 2, so it cannot join them.
    assert clusters(shares, 0.99) == [[0, 2, 4], [1], [3]]
    assert clusters(shares, 0.98) == [[0, 2, 4], [1, 3]]
    assert clusters(np.zeros((0, 0)), 0.5) == []


@given(SELECTIONS, st.sampled_from([0.25, 0.5, 0.9]))
def test_every_two_of_a_cluster_agree_and_everyone_is_in_one(selections: NDArray[np.int64], threshold: float) -> None:
    shares = agreement_matrices(selections, 1).as_sequence
    found = clusters(shares, threshold)
    assert sorted(i for cluster in found for i in cluster) == list(range(len(selections)))
    for cluster in found:
        assert all(shares[i, j] >= threshold for i in cluster for j in cluster)
    for one, other in pairwise(found):
        # A later cluster exists only because its first policy does not fit into an earlier one.
        assert any(shares[i, other[0]] < threshold for i in one)


def test_a_policy_without_a_comparison_joins_no_cluster() -> None:
    shares = np.array([[1.0, math.nan], [math.nan, 1.0]])
    assert clusters(shares, 0.0) == [[0], [1]]


def test_short_selections_are_filled_behind_their_ends() -> None:
    assert padded_selections([[4, 2, 7], [5], []], 2).tolist() == [[4, 2], [5, ENDED], [ENDED, ENDED]]
    assert padded_selections([], 3).shape == (0, 3)
