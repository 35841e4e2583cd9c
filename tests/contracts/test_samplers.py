"""The contract of every plugin of `lever_pipe/lever/samplers`, found by name, alone and through its stage."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import cast

import numpy as np
import pytest

from lever_pipe.base.errors import DataError
from lever_pipe.base.plugins import available
from lever_pipe.base.records import Split
from lever_pipe.base.seeding import generator
from lever_pipe.experiment.pools import Pools, SamplePoolsConfig
from lever_pipe.lever.samplers import mixture
from lever_pipe.lever.samplers.protocol import Sampler, SamplingView
from lever_pipe.stages.pools import build_pools
from tests.unit.builders import example

N, WIDTH, SIZE = 60, 8, 16
PLUGINS = available("lever/samplers")
every_plugin = pytest.mark.parametrize("name", PLUGINS)


def plugin(name: str) -> Sampler:
    return cast("Sampler", importlib.import_module(f"lever_pipe.lever.samplers.{name}"))


def unit_rows(seed: int, n: int) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((n, WIDTH)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


# 60 train examples on 20 images: 3i, 3i + 1 and 3i + 2 show image i. Evaluation query q has the vectors of train
# example q but with its own image, so that its nearest neighbor is train example q.
TRAIN = [example(i, image_digest=f"image{i // 3}") for i in range(N)]
EVAL = [example(i, image_digest=f"other{i}") for i in range(N)]
IMAGES, QUESTIONS = np.repeat(unit_rows(0, N // 3), 3, axis=0), unit_rows(1, N)
ARRAYS = {"image": IMAGES, "question": QUESTIONS}


def pools(
    name: str, queries: Iterable[int] = range(N), *, split: Split = "train", size: int = SIZE, exclude: bool = True
) -> dict[int, list[int]]:
    """Return the pool of each query as the stage draws it."""
    settings = Pools(sampler=name, size=size, exclude_same_image=exclude)
    config = SamplePoolsConfig(split=split, pools=settings, n_rl_queries=N, rl_seed=0)
    rows = build_pools([(TRAIN if split == "train" else EVAL)[q] for q in queries], ARRAYS, TRAIN, ARRAYS, config)
    return {row.query_id: list(row.candidates) for row in rows}


def view(eligible: Iterable[int] = range(N), *, query: int = 0) -> SamplingView:
    return SamplingView(np.array(list(eligible)), IMAGES @ IMAGES[query], QUESTIONS @ QUESTIONS[query])


def test_the_published_samplers_are_plugins() -> None:
    assert {"uniform", "image_similarity", "text_similarity", "mixture"} <= set(PLUGINS)


@every_plugin
def test_draws_k_distinct_eligible_ids(name: str) -> None:
    for seed in range(20):
        eligible = range(seed % 3, N, 2)  # 29 or 30 of them, with gaps
        sampled = plugin(name).sample(view(eligible), SIZE, generator(seed))
        assert np.issubdtype(sampled.dtype, np.integer)
        assert sampled.shape == (SIZE,)
        assert len(set(sampled.tolist())) == SIZE
        assert set(sampled.tolist()) <= set(eligible)


@every_plugin
def test_same_stream_gives_same_pool(name: str) -> None:
    first, second = (plugin(name).sample(view(), SIZE, generator(3, "pools")) for _ in range(2))
    assert first.tolist() == second.tolist()


@every_plugin
def test_pool_excludes_the_query_and_its_image(name: str) -> None:
    for query, sampled in pools(name).items():
        assert len(set(sampled)) == SIZE
        assert query not in sampled
        assert not any(candidate // 3 == query // 3 for candidate in sampled)


@every_plugin
def test_query_itself_stays_out_when_its_image_may_come_in(name: str) -> None:
    sampled = pools(name, exclude=False)
    assert all(query not in candidates for query, candidates in sampled.items())
    # The two others of each image are then as eligible as anything else.
    assert any(c // 3 == query // 3 for query, candidates in sampled.items() for c in candidates)


@every_plugin
def test_pools_do_not_depend_on_other_queries(name: str) -> None:
    everything = pools(name)
    for queries in (range(N - 1, 0, -7), [13]):
        assert pools(name, queries) == {q: everything[q] for q in queries}


@every_plugin
def test_too_few_eligible_examples_are_refused_with_the_counts(name: str) -> None:
    # 60 less the three of the query's own image leaves 57.
    assert len(pools(name, [5], size=57)[5]) == 57
    with pytest.raises(DataError, match=r"train query 5 .*57"):
        pools(name, [5], size=58)


def test_uniform_pools_cover_all_candidates_evenly() -> None:
    draws = 600
    counts = np.zeros(N)
    for seed in range(draws):
        counts[plugin("uniform").sample(view(), SIZE, generator(seed))] += 1
    # Each count is binomial(600, 16/60): mean 160, sd 10.8; five sd bound all 60 of them.
    assert np.abs(counts - 160).max() < 54


@pytest.mark.parametrize(("name", "vectors"), [("image_similarity", IMAGES), ("text_similarity", QUESTIONS)])
def test_similarity_pools_equal_a_plain_ranking(name: str, vectors: np.ndarray) -> None:
    for query in (0, 31, 59):
        allowed = [i for i in range(N) if i // 3 != query // 3]
        # Examples of one image tie exactly in theory; rounding makes them tie in this oracle too.
        ranked = sorted(allowed, key=lambda i: (-round(float(vectors[i] @ vectors[query]), 5), i))
        assert pools(name, [query])[query] == ranked[:SIZE]


def test_mixture_has_the_published_shares() -> None:
    assert mixture.counts(64) == (32, 16, 16)
    # int(9 x 0.5) = 4 and int(9 x 0.25) = 2; the last part takes the remaining 3.
    assert mixture.counts(9) == (4, 2, 3)


def test_mixture_holds_the_nearest_of_both_kinds() -> None:
    for query in (0, 31, 59):
        sampled = pools("mixture", [query])[query]
        # A quarter of 16 is of each kind, after the uniform half: the nearest 4 are always in.
        for name in ("image_similarity", "text_similarity"):
            assert set(pools(name, [query])[query][:4]) <= set(sampled)
