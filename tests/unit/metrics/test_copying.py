from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.metrics.copying import copied_at, vote


def test_the_most_frequent_answer_wins_and_of_equals_the_first() -> None:
    assert vote(["cat", "dog", "dog"]) == "dog"
    assert vote(["cat", "dog"]) == "cat"
    assert vote(["dog", "cat", "two", "The cat", "2"]) == "cat"  # as the benchmark compares: cat 2, 2 2, dog 1
    assert vote([]) == ""


@given(st.lists(st.sampled_from("abcd"), min_size=1))
def test_nothing_is_more_frequent_than_what_wins(displayed: list[str]) -> None:
    won, counts = vote(displayed), Counter(displayed)
    ties = [answer for answer in displayed if counts[answer] == max(counts.values())]
    assert won == ties[0]


def test_a_copy_is_told_by_every_rank_that_holds_it() -> None:
    assert copied_at("2", ["cat", "two", "dog", "2"]) == [2, 4]
    assert copied_at("cow", ["cat"]) == []
