from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.base.errors import ConfigError
from lever_pipe.lvlms import _planner
from lever_pipe.lvlms._planner import Budget, Chunk, TrieNode
from lever_pipe.lvlms._requests import (
    Layout,
    PromptTooLongError,
    Segment,
    TokenPrompt,
    TokenRequest,
    merge_requests,
)

NAMES = st.lists(st.integers(1, 5), min_size=1, max_size=5)
ANSWERS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple), max_size=3).map(tuple)
REQUESTS = st.lists(
    st.builds(lambda names, answers, generate: request(names, answers, generate), NAMES, ANSWERS, st.booleans()),
    max_size=25,
)


def segment(name: int) -> Segment:
    return Segment((name,) * name)  # segment n has n tokens


def layout(of: Segment) -> Layout:
    ids = np.array(of.ids)
    return Layout(ids, np.broadcast_to(np.arange(len(ids)), (3, len(ids))), len(ids))


def request(names: Iterable[int], answers: tuple[tuple[int, ...], ...] = (), generate: bool = True) -> TokenRequest:
    return TokenRequest(TokenPrompt(tuple(segment(name) for name in names)), answers, generate)


def budget(wave: int = 40, stored: int = 200, new_tokens: int = 3, beams: int = 2) -> Budget:
    return Budget(wave, stored, 1000, new_tokens, beams)


def chunks(requests: list[TokenRequest], of: Budget) -> list[Chunk]:
    return list(_planner.plan_chunks(_planner.trie_order(merge_requests(requests)), layout, of, {}))


def nodes(found: Iterable[Chunk]) -> Iterator[TrieNode]:
    return (node for chunk in found for wave in chunk.waves for node in wave)


def beginning(node: TrieNode) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(part.layout.ids.tolist()) for part in node.path())


def need(requests: list[TokenRequest], of: Budget) -> int:
    """What the greediest single prompt stores."""
    return max(
        sum(len(s.ids) for s in r.prompt.segments) + sum(len(a) - 1 for a in r.answers) + of.n_generated * r.generate
        for r in requests
    )


@given(REQUESTS, st.integers(1, 60), st.integers(0, 100))
def test_every_beginning_is_computed_once_and_every_prompt_ends_once(requests, wave: int, more: int) -> None:
    merged = merge_requests(requests)
    of = budget(wave=wave)
    of = budget(wave=wave, stored=(need(merged, of) if merged else 1) + more)
    planned = list(nodes(chunks(requests, of)))
    wanted = {p.prompt.segments[:n] for p in merged for n in range(1, len(p.prompt.segments) + 1)}
    assert sorted(map(beginning, planned)) == sorted(tuple(s.ids for s in part) for part in wanted)
    assert sorted(map(repr, (n.request for n in planned if n.request))) == sorted(map(repr, merged))
    distinct = _planner.distinct_tokens(_planner.trie_order(merged), lambda s: len(s.ids))
    assert sum(node.size for node in planned) == distinct == sum(len(part[-1].ids) for part in wanted)


@given(REQUESTS, st.integers(1, 60), st.integers(0, 100))
def test_parents_come_first_and_memory_stays_within_the_budget(requests, wave: int, more: int) -> None:
    merged = merge_requests(requests)
    of = budget(wave=wave)
    of = budget(wave=wave, stored=(need(merged, of) if merged else 1) + more)
    retained: set[int] = set()
    stored = 0
    for chunk in chunks(requests, of):
        for part in chunk.waves:
            assert all(node.parent is None or id(node.parent) in retained for node in part)
            tokens = sum(node.size + node.n_branches for node in part)
            assert tokens <= wave or len(part) == 1
            while_running = sum(node.size + node.n_branches + of.n_generated * node.generates for node in part)
            assert stored + while_running <= of.stored
            retained |= {id(node) for node in part if node.is_kept}
            stored += sum(node.size for node in part if node.is_kept)
        retained -= {id(node) for node in chunk.released}
        stored -= sum(node.size for node in chunk.released)
    assert not retained
    assert stored == 0


@given(REQUESTS, st.randoms(use_true_random=False))
def test_the_plan_does_not_depend_on_the_order(requests, rng: random.Random) -> None:
    def shape(found: list[Chunk]) -> list[list[list[object]]]:
        return [[[(beginning(n), repr(n.request), n.is_kept) for n in wave] for wave in c.waves] for c in found]

    shuffled = rng.sample(requests, len(requests))
    assert shape(chunks(requests, budget())) == shape(chunks(shuffled, budget()))


def test_what_no_plan_can_hold_is_refused() -> None:
    of = budget(stored=20)
    _planner.require_fit(request([5, 5], ((1, 2, 3),), False), 18, of)
    with pytest.raises(ConfigError, match="found 20, and a prompt that needs 21"):
        _planner.require_fit(request([5, 5], ((1, 2, 3),), False), 19, of)
    with pytest.raises(ConfigError, match="needs 22"):
        _planner.require_fit(request([5, 5]), 18, of)  # two generated tokens of two beams are fed back
    long = Budget(wave=10, stored=10_000, context=100, new_tokens=3, beams=2)
    _planner.require_fit(request([5], ((1, 1),)), 97, long)
    with pytest.raises(PromptTooLongError, match="101 tokens"):
        _planner.require_fit(request([5], ((1, 1),)), 98, long)
    with pytest.raises(PromptTooLongError, match="102 tokens"):
        _planner.require_fit(request([5], ((1,) * 5,), False), 97, long)
