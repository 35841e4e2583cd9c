"""Beam search against hand values and against looking at everything."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import permutations

import numpy as np
import pytest
from builders import ids, pool
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.base.records import Beam, QueryBeams
from lever_pipe.experiment.beams import Beams
from lever_pipe.lever.beams import Demonstrations, Score, prompt_order, search_beams, span_probability
from lever_pipe.lever.training.groups import groups_of_beams
from lever_pipe.lvlms.asking.prompts import PromptIds
from lever_pipe.lvlms.protocol import LvlmReply

Table = Callable[[Demonstrations], float]


def scoring(of: Table, calls: list[list[PromptIds]] | None = None) -> Score:
    """Return a scorer that looks up a table, for any query, and records its calls."""

    def score(prompts: Sequence[PromptIds]) -> list[float]:
        if calls is not None:
            calls.append(list(prompts))
        return [of(chosen) for _, chosen in prompts]

    return score


def sampled(seed: int) -> Table:
    """Return a probability for each selection, the same each time."""
    return lambda chosen: float(np.random.default_rng([seed, *chosen]).random())


def test_the_last_gain_prefers_a_bad_start_with_a_large_step() -> None:
    """.2 -> .5 -> .4 gains +.3 and -.1; .2 -> .1 -> .35 ends lower, but its last step is +.25."""
    values = {(): 0.2, (7,): 0.5, (7, 9): 0.4, (9,): 0.1, (9, 7): 0.35}
    settings = {rank: Beams(anchors=2, size=2, rank=rank) for rank in ("total", "last_gain")}  # type: ignore[arg-type]
    for rank, best in (("total", (7, 9)), ("last_gain", (9, 7))):
        (found,) = search_beams([pool(0, [9, 7])], scoring(lambda chosen: values[chosen]), settings[rank])
        assert (found.empty, [beam.demonstrations for beam in found.beams]) == (0.2, [best, best[::-1]])
        by_demonstrations = {beam.demonstrations: (beam.probability, *beam.gains) for beam in found.beams}
        assert by_demonstrations == {(7, 9): pytest.approx((0.4, 0.3, -0.1)), (9, 7): pytest.approx((0.35, -0.1, 0.25))}


@given(
    st.integers(0, 2**31),
    st.integers(2, 5),
    st.integers(1, 6),
    st.integers(1, 2),
    st.sampled_from(["total", "last_gain"]),
)
def test_gains_add_up_to_what_all_demonstrations_do(seed: int, k: int, size: int, shots: int, rank: str) -> None:
    settings = Beams(anchors=2, size=size, shots=shots, rank=rank)  # type: ignore[arg-type]
    for row in search_beams([pool(3, range(10, 10 + k))], scoring(sampled(seed)), settings):
        assert len(row.beams) == min(size, math.perm(k, shots))
        for beam in row.beams:
            assert sum(beam.gains) == pytest.approx(beam.probability - row.empty, abs=1e-6)
            assert len(set(beam.demonstrations)) == shots == len(beam.gains)
        worth = [beam.probability if rank == "total" else beam.gains[-1] for beam in row.beams]
        assert worth == sorted(worth, reverse=True)


def test_equal_beams_are_settled_by_id_whatever_the_order_of_the_pool() -> None:
    for order in permutations((5, 3, 8)):
        (found,) = search_beams([pool(0, order)], scoring(lambda _: 0.5), Beams(anchors=2, size=2))
        assert [beam.demonstrations for beam in found.beams] == [(3, 5), (3, 8)]


def test_the_probability_is_that_of_the_span_alone() -> None:
    """Mean of ln .5 and ln .125 is ln .25; the end of the turn does not count."""
    reply = LvlmReply("", 0, ((math.log(0.5), math.log(0.125), -40.0),))
    assert span_probability(reply) == pytest.approx(0.25)
    assert span_probability(LvlmReply("", 0, ((1e-7, 0.0),))) == 1.0


def test_labels_are_places_in_the_pool_in_the_order_of_the_prompt() -> None:
    rows = [
        QueryBeams(query_id=4, empty=0.1, beams=(beam([30, 20], 0.9), beam([10, 30], 0.5))),
        QueryBeams(query_id=2, empty=0.1, beams=(beam([7, 9], 0.2),)),
    ]  # fmt: skip
    pools = [pool(4, [10, 20, 30]), pool(2, [9, 8, 7])]
    for newest, first in (("last", [2, 1]), ("first", [1, 2])):
        settings = Beams(anchors=2, newest=newest)  # type: ignore[arg-type]
        groups = groups_of_beams(rows, pools, lambda chosen, of=settings: prompt_order(chosen, of))  # type: ignore[misc]
        assert groups.queries.tolist() == [2, 4]
        assert groups.selections[1, 0].tolist() == first
        for row, group in zip(sorted(rows, key=lambda row: row.query_id), range(2), strict=True):
            labelled = groups.pools[group][groups.selections[group][groups.valid[group]]].tolist()
            assert [tuple(one) for one in labelled] == [prompt_order(of.demonstrations, settings) for of in row.beams]
        assert groups.valid.tolist() == [[True, False], [True, True]]
        assert groups.rewards.tolist() == [[pytest.approx(0.2), 0.0], [pytest.approx(0.9), 0.5]]


def beam(demonstrations: Sequence[int], probability: float) -> Beam:
    return Beam(demonstrations=ids(demonstrations), gains=(0.0,) * len(demonstrations), probability=probability)
