from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.lever.emulation import identical_prompts, prompts_a_query, repeated_share

ONE = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [7, 8, 9, 7]])
OTHER = np.array([[1, 0, 0, 0], [1, 0, 0, 0], [7, 8, 9, 6]])


def test_repeats_begin_at_the_third_shot_of_a_pool_of_two() -> None:
    assert [repeated_share(ONE, k) for k in (1, 2, 3, 4)] == [0, 0, pytest.approx(2 / 3), 1]


def test_prompts_are_counted_for_each_query_and_by_order() -> None:
    assert prompts_a_query([ONE, OTHER, ONE], 1).tolist() == [1, 2, 1]
    assert prompts_a_query([ONE, OTHER, ONE], 2).tolist() == [1, 2, 1]  # [0, 1] and [1, 0] are two prompts
    assert prompts_a_query([ONE, OTHER], 4).tolist() == [1, 2, 2]
    assert prompts_a_query([ONE], 4).tolist() == [1, 1, 1]


def test_every_two_policies_are_compared_once() -> None:
    found = identical_prompts({"a": ONE, "b": OTHER, "c": ONE}, 2)
    assert found == [("a", "b", pytest.approx(2 / 3)), ("a", "c", 1.0), ("b", "c", pytest.approx(2 / 3))]


@given(st.lists(st.sampled_from([(1, 0, 0, 0), (0, 1, 0, 0)]), min_size=1, max_size=9))
def test_a_pool_of_two_makes_two_prompts_a_shot_count_however_many_policies(rows: list[tuple[int, ...]]) -> None:
    policies = [np.array([row]) for row in rows]
    counts = [int(prompts_a_query(policies, k)[0]) for k in (1, 2, 3, 4)]
    # the first pick decides the rest, so every shot count has as many prompts: 8 at most
    assert len(set(counts)) == 1
    assert counts[0] == len(set(rows))
