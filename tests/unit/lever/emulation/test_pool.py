from __future__ import annotations

import torch
from builders import pool
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.lever.emulation import first_items, with_repeats
from lever_pipe.lever.selector.decoding import rank_pool


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
    assert with_repeats(rank_pool(scores, 2), 4, 2).tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]


@given(st.lists(st.integers(-99, 99), min_size=1, max_size=6), st.integers(1, 8))
def test_it_is_the_published_loop(scores: list[int], shots: int) -> None:
    tenths = [score / 10 for score in scores]
    n_pool = len(scores)
    picks = rank_pool(torch.tensor([tenths]), min(shots, n_pool))
    assert with_repeats(picks, shots, n_pool).tolist() == [published_decoding(tenths, shots)]


def test_what_has_ended_stays_so() -> None:
    assert with_repeats(torch.tensor([[1, 2], [0, 1]]), 4, 2).tolist() == [[1, 2, 2, 2], [0, 1, 0, 0]]


def test_every_query_gets_the_first_train_items() -> None:
    pools = first_items([pool(5, [9, 4, 7]), pool(2, [1, 8, 3])], 2)
    assert [(p.query_id, p.candidates) for p in pools] == [(5, (0, 1)), (2, (0, 1))]
