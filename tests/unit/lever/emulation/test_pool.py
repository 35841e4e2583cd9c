from __future__ import annotations

import torch
from builders import pool
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.lever.emulation.selections import first_items, greedy_with_repeats
from lever_pipe.lever.selector.network import rank_pool


def published_decoding(scores: list[float], shots: int) -> list[int]:
    """Return picks as the published loop makes them: the chosen get a score of -100, and the first maximum wins."""
    left, picks = list(scores), []
    for _ in range(shots):
        best = max(range(len(left)), key=lambda k: (left[k], -k))
        left[best] = -100.0
        picks.append(best)
    return picks


def test_two_items_and_four_shots_give_two_rows() -> None:
    scores = torch.tensor([[1.0, 3.0], [3.0, 1.0]])
    # the better item, the other one, then the first of two masked scores, twice
    assert greedy_with_repeats(scores, 4).tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]


@given(st.lists(st.integers(-99, 99), min_size=1, max_size=6), st.integers(1, 8))
def test_it_is_the_published_loop(scores: list[int], shots: int) -> None:
    tenths = [score / 10 for score in scores]
    assert greedy_with_repeats(torch.tensor([tenths]), shots).tolist() == [published_decoding(tenths, shots)]


@given(st.lists(st.integers(-99, 99), min_size=4, max_size=8, unique=True))
def test_within_the_pool_it_is_the_right_ranking(scores: list[int]) -> None:
    tensor = torch.tensor([scores], dtype=torch.float32)
    assert torch.equal(greedy_with_repeats(tensor, 4), rank_pool(tensor, 4))


def test_the_scores_are_left_alone() -> None:
    scores = torch.tensor([[1.0, 3.0]])
    greedy_with_repeats(scores, 2)
    assert scores.tolist() == [[1.0, 3.0]]


def test_every_query_gets_the_first_train_items() -> None:
    pools = first_items([pool(5, [9, 4, 7]), pool(2, [1, 8, 3])], 2)
    assert [(p.query_id, p.candidates) for p in pools] == [(5, (0, 1)), (2, (0, 1))]
