"""Proposed selections: an exhaustive oracle for beams, the published retrieval rule, and the records."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
from builders import pool
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.base.records import Proposal
from lever_pipe.base.seeding import generator
from lever_pipe.experiment.rl_data import ProposalSettings
from lever_pipe.lever.proposers import diversity_fill, propose

NONE = ProposalSettings(
    shots=2,
    n_beams=0,
    temperatures=(),
    n_samples_per_temperature=0,
    disjoint_samples=False,
    n_retrieval=0,
    n_random=0,
    similarity_scale=1.5,
)


def replace(settings: ProposalSettings, **changed: object) -> ProposalSettings:
    return settings.model_copy(update=changed)


PUBLISHED = replace(NONE, n_beams=5, temperatures=(1.0, 1.3), n_samples_per_temperature=2, n_retrieval=5, n_random=1)

similarity_lists = st.lists(st.floats(-1, 1, width=32), min_size=3, max_size=7)


def run(similarities: list[float], options: ProposalSettings, seed: int = 0) -> list[Proposal]:
    """Return the proposals of query 3; pool position i is train example 100 + i."""
    values = np.array(similarities, dtype=np.float32)
    return propose(pool(3, range(100, 100 + len(values))), values, options, generator(seed, "proposals", 3))


def step_probabilities(similarities: list[float], scale: float, chosen: tuple[int, ...]) -> list[float]:
    """Return the Plackett-Luce probability of each pick, slowly: its weight over the sum of the remaining weights."""
    values = [float(np.float32(value)) for value in similarities]
    mean = sum(values) / len(values)
    sd = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    weights = [math.exp(scale * (value - mean) / sd) if sd > 0 else 1.0 for value in values]
    found = []
    for step, pick in enumerate(chosen):
        left = sum(weight for i, weight in enumerate(weights) if i not in chosen[:step])
        found.append(weights[pick] / left)
    return found


@given(similarity_lists, st.integers(1, 2), st.integers(1, 6))
def test_beams_equal_the_best_of_all_selections(similarities: list[float], shots: int, n_beams: int) -> None:
    # Exact for two shots: a selection whose first pick is not among the n likeliest has n better rivals, namely itself
    # with that pick exchanged for, or swapped with, each of the n.
    beams = run(similarities, replace(NONE, shots=shots, n_beams=n_beams))
    logs = sorted(
        (
            math.fsum(map(math.log, step_probabilities(similarities, 1.5, chosen)))
            for chosen in permutations(range(len(similarities)), shots)
        ),
        reverse=True,
    )
    found = [beam.logprob_score for beam in beams]
    # The oracle sums in another order: rounding of float64 at logs of at most some ten.
    assert found == pytest.approx(logs[: len(found)], rel=0, abs=1e-9)
    assert len(found) == min(n_beams, math.perm(len(similarities), shots))


def test_beam_scores_by_hand() -> None:
    # Similarities 1, 0, -1: sd sqrt(2/3); scale sqrt(2/3) ln 2 makes the weights 2, 1, 1/2.
    # First pick 2 / 3.5 = 4/7, then 1 / 1.5 = 2/3.
    best = run([1, 0, -1], replace(NONE, n_beams=1, similarity_scale=math.sqrt(2 / 3) * math.log(2)))[0]
    assert best.pointer == (0, 1)
    assert best.pointer_global == (100, 101)
    assert best.beam_rank == 0
    assert best.logprob_score == pytest.approx(math.log(4 / 7 * 2 / 3))
    assert best.beam_score == pytest.approx(4 / 7 + 2 / 3)
    assert (best.gen_method, best.temperature, best.similarity_score) == ("beam", None, None)


@given(similarity_lists, st.integers(0, 9), st.integers(1, 3), st.booleans())
def test_proposals_are_distinct_valid_and_follow_the_precedence(
    similarities: list[float], seed: int, shots: int, disjoint: bool
) -> None:
    found = run(similarities, replace(PUBLISHED, shots=shots, disjoint_samples=disjoint), seed)
    assert len({p.pointer for p in found}) == len(found)
    for proposal in found:
        assert proposal.query_id == 3
        assert len(set(proposal.pointer)) == len(proposal.pointer) == shots
        assert all(0 <= position < len(similarities) for position in proposal.pointer)
        assert proposal.pointer_global == tuple(100 + position for position in proposal.pointer)
    order = ["beam", "retrieval", "sample", "random"]
    ranks = [order.index(p.gen_method) for p in found]
    assert ranks == sorted(ranks)


def test_retrieval_takes_the_next_most_similar_again_and_again() -> None:
    # By falling similarity: positions 2, 0, 3, 1. Always the first: 2, 0. Always the second: 0, then of 2, 3, 1 the
    # second, 3. Always the third: 3, then of 2, 0, 1 the third, 1. The fourth: 1, and then none remains.
    found = run([0.5, -0.2, 0.9, 0.1], replace(NONE, n_retrieval=5))
    assert [p.pointer for p in found] == [(2, 0), (0, 3), (3, 1)]
    assert found[0].similarity_score == pytest.approx(0.7)
    assert found[0].logprob_score is None


@given(similarity_lists, st.sampled_from([0.5, 1.0, 1.3]), st.booleans())
def test_samples_record_the_tempered_log_probability(
    similarities: list[float], temperature: float, disjoint: bool
) -> None:
    options = replace(NONE, temperatures=(temperature,), n_samples_per_temperature=3, disjoint_samples=disjoint)
    for sample in run(similarities, options):
        steps = step_probabilities(similarities, 1.5 / temperature, sample.pointer)
        assert sample.temperature == temperature
        # as above: float64 rounding
        assert sample.logprob_score == pytest.approx(math.fsum(map(math.log, steps)), rel=0, abs=1e-9)


def test_disjoint_samples_share_no_demonstration_while_the_pool_lasts() -> None:
    options = replace(NONE, temperatures=(1.0,), n_samples_per_temperature=4, disjoint_samples=True)
    found = run([0.1 * i for i in range(8)], options)
    assert sorted(position for p in found for position in p.pointer) == list(range(8))


def fill(size: int, present: list[tuple[int, ...]], budget: int, *, shots: int = 2, seed: int = 0) -> list[Proposal]:
    of = pool(3, range(100, 100 + size))
    return diversity_fill(of, present, shots=shots, budget=budget, generator=generator(seed, "fill", 3))


@given(st.integers(3, 8), st.integers(0, 8), st.integers(0, 5))
def test_fill_draws_its_budget_of_further_selections(size: int, budget: int, seed: int) -> None:
    present = [(0, 1), (1, 0)]
    found = fill(size, present, budget, seed=seed)
    pointers = [p.pointer for p in found]
    # perm(size, 2) - 2 selections remain: 4 at size 3.
    assert len(found) == min(budget, math.perm(size, 2) - 2)
    assert len(set(pointers)) == len(pointers)
    assert not set(pointers) & set(present)
    assert all(len(set(p)) == 2 and all(0 <= i < size for i in p) for p in pointers)
    assert all(p.gen_method == "fill" and p.pointer_global == tuple(100 + i for i in p.pointer) for p in found)


def test_a_smaller_budget_is_a_prefix_so_no_outcome_moves_a_draw() -> None:
    assert fill(20, [], 12)[:5] == fill(20, [], 5)
