"""The packed engine against the model library on pixels: tokens, log-probabilities, work and memory."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from engine_bench import ATOL, Library, results

from lever_pipe.lvlms._requests import TokenPrompt, TokenRequest, segment_layout
from lever_pipe.lvlms.qwen2_5_vl import load


def generating(prompts: list[TokenPrompt]) -> list[TokenRequest]:
    return [TokenRequest(prompt) for prompt in prompts]


def stock(bench, prompts: list[TokenPrompt], **options: object) -> list[tuple[int, ...]]:
    return bench.library.tokens(prompts, bench.options(**options))


@pytest.fixture(scope="module")
def reference(bench):
    prompts, answers = bench.prompts(), bench.answers()
    return stock(bench, prompts), [[bench.library.scores(p, a) for a in answers] for p in prompts]


@pytest.fixture(scope="module")
def frequent(bench) -> list[int]:
    """Tokens that answers really contain, so that making one the end of the turn ends them early."""
    tokens = [t for answer in stock(bench, bench.prompts()) for t in answer[:4]]
    return [token for token, _ in Counter(tokens).most_common(3)]


def largest_gap(found, reference, *, generated: bool = True) -> float:
    """The largest difference of a scored token, infinite where a generated token differs."""
    tokens, scores = reference
    if generated and [r.tokens for r in found] != tokens:
        return float("inf")
    ours = [v for r in found for answer in r.scores for v in answer]
    theirs = [v for row in scores for answer in row for v in answer]
    return max(abs(one - other) for one, other in zip(ours, theirs, strict=True))


def test_the_tiny_model_reacts_to_images_and_prompts(bench, reference) -> None:
    # Without this guard a dull random model would hide every problem below.
    digests, answer = list(bench.paths), bench.answers()[1:2]
    prompt = bench.prompt((0, 1), 9)
    swapped = TokenPrompt(tuple(replace(s, images=tuple(digests[2] for _ in s.images)) for s in prompt.segments))
    plain, other = bench.answered([TokenRequest(prompt, answer), TokenRequest(swapped, answer)])
    assert max(abs(a - b) for a, b in zip(plain.scores[0], other.scores[0], strict=True)) > 0.1
    assert len(set(reference[0])) >= 8
    assert sum(len(set(tokens)) > 2 for tokens in reference[0]) >= 8  # not one token over and over


@pytest.mark.parametrize(("wave_tokens", "kv_tokens"), [(1, 100_000), (100_000, 100_000), (300, 250)])
def test_greedy_tokens_and_scores_equal_the_stock_ones(bench, reference, wave_tokens: int, kv_tokens: int) -> None:
    engine = bench.engine(wave_tokens=wave_tokens, kv_tokens=kv_tokens)
    assert largest_gap(results(engine, bench.requests()), reference) < ATOL
    assert engine.counters["images_encoded"] == len({d for p in bench.prompts() for d in p.images})


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_beam_search_equals_the_stock_one(bench, length_penalty: float) -> None:
    prompts, search = bench.prompts()[:8], {"beams": 3, "length_penalty": length_penalty}
    found = bench.answered(generating(prompts), **search)
    assert [r.tokens for r in found] == stock(bench, prompts, **search)
    for prompt, result in zip(prompts[:3], found, strict=False):
        assert result.beam_score == pytest.approx(bench.library.answer(prompt, bench.options(**search))[1], abs=ATOL)
        norm = len(result.tokens) ** length_penalty
        assert sum(result.token_log_probs) / norm == pytest.approx(result.beam_score, abs=ATOL)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("ends", [(0,), (0, 1)])
def test_early_ends_equal_the_stock_ones(bench, frequent: list[int], beams: int, ends: tuple[int, ...]) -> None:
    prompts, eos = bench.prompts()[:8], tuple(frequent[index] for index in ends)
    found = bench.answered(generating(prompts), beams=beams, eos=eos)
    assert [r.tokens for r in found] == stock(bench, prompts, beams=beams, eos=eos)
    assert any(r.tokens[-1] in eos and len(r.tokens) < 6 for r in found)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("penalty", [0.7, 3.0])
def test_a_repetition_penalty_equals_the_stock_one(bench, penalty: float, beams: int) -> None:
    prompts = bench.prompts()[:8]
    tokens = [r.tokens for r in bench.answered(generating(prompts), beams=beams, repetition_penalty=penalty)]
    assert tokens == stock(bench, prompts, beams=beams, repetition_penalty=penalty)
    # Otherwise a missing penalty could go unnoticed.
    assert tokens != stock(bench, prompts, beams=beams)


def test_a_repetition_penalty_stays_with_its_prompt_where_others_end(bench) -> None:
    prompts, penalty = bench.prompts()[:8], 3.0
    ends = tuple(sorted({tokens[1] for tokens in stock(bench, prompts[:4], repetition_penalty=penalty)}))
    found = bench.answered(generating(prompts), eos=ends, repetition_penalty=penalty)
    assert [r.tokens for r in found] == stock(bench, prompts, eos=ends, repetition_penalty=penalty)
    lengths = [len(r.tokens) for r in found]  # half of the rows leave the batch
    assert max(lengths[:4]) <= 2 < max(lengths[4:])


@pytest.mark.parametrize("index", range(11))
def test_ids_and_positions_equal_the_stock_ones_bit_for_bit(bench, index: int) -> None:
    prompt, model = bench.prompts()[index], bench.parts.model
    inputs = bench.library.inputs(prompt)
    expected, delta = model.model.get_rope_index(
        inputs["input_ids"], inputs["mm_token_type_ids"], image_grid_thw=inputs["image_grid_thw"]
    )
    store = bench.vision()
    start, ids, positions = 0, [], []
    for segment in prompt.segments:
        images = [store.layout(digest) for digest in segment.images]
        layout = segment_layout(segment.ids, images, image_token=bench.parts.image_token)
        ids += layout.ids.tolist()
        positions.append(start + layout.positions)
        start += layout.advance
    assert ids == inputs["input_ids"][0].tolist()
    assert np.array_equal(np.concatenate(positions, axis=1), expected[:, 0].numpy())
    assert start == int(expected.max()) + 1 == int(delta) + len(ids)


def prompt_length(bench, prompt: TokenPrompt) -> int:
    return int(bench.library.inputs(prompt)["input_ids"].shape[1])


def distinct_lengths(bench, prompts: list[TokenPrompt]) -> int:
    """Tokens of all distinct beginnings of the prompts, by the stock path's own tokenisation."""
    beginnings = {p.segments[:n] for p in prompts for n in range(1, len(p.segments) + 1)}
    return sum(prompt_length(bench, TokenPrompt((s[-1],))) for s in beginnings)


@pytest.mark.parametrize("kv_tokens", [250, 600, 100_000])
def test_each_beginning_is_computed_once_over_all_chunks(bench, kv_tokens: int) -> None:
    engine = bench.engine(kv_tokens=kv_tokens, wave_tokens=300)
    results(engine, bench.requests())
    distinct = list(dict.fromkeys(bench.prompts()))
    assert engine.counters["prompt_tokens"] == sum(prompt_length(bench, p) for p in distinct)
    assert (
        engine.counters["tokens_prefilled"]
        == engine.counters["trie_tokens_distinct"]
        == distinct_lengths(bench, distinct)
    )
    assert engine.counters["tokens_prefilled"] < 0.7 * engine.counters["prompt_tokens"]  # there is something to share


@pytest.mark.parametrize("kv_tokens", [250, 4000])
@pytest.mark.parametrize("beams", [1, 3])
def test_memory_stays_within_the_budget_and_comes_back(bench, kv_tokens: int, beams: int) -> None:
    engine = bench.engine(kv_tokens=kv_tokens, beams=beams)
    results(engine, bench.requests())
    pool = engine._pool
    assert pool.size <= kv_tokens
    assert pool.used == sum(node.size for node in engine._resident.values()) <= kv_tokens // 2
    engine._forget()
    assert pool.used == 0
    assert sorted(pool._free) == list(range(pool.size))


@pytest.mark.parametrize("kv_tokens", [200, 250, 100_000])
def test_beginnings_up_to_the_first_image_stay_from_run_to_run(bench, kv_tokens: int) -> None:
    engine = bench.engine(kv_tokens=kv_tokens, wave_tokens=300)
    first = [bench.prompt((demonstration,), 9) for demonstration in (0, 1, 2, 3, 4)]
    then = [bench.prompt((demonstration, 5), 8) for demonstration in (4, 3, 2, 1, 0)]
    requests = [[TokenRequest(p, bench.answers())] for p in (*first, *then)]
    assert [results(engine, each) for each in requests] == [bench.answered(each) for each in requests]  # bit for bit

    skipped = engine.counters["prompt_tokens"] - engine.counters["tokens_prefilled"]
    system = prompt_length(bench, TokenPrompt(first[0].segments[:1]))
    lengths = [prompt_length(bench, TokenPrompt(p.segments[1:2])) for p in first]
    everything = 9 * system + sum(lengths)
    # Half of the room is for beginnings; a prompt that needs it has it.
    assert skipped == everything if kv_tokens == 100_000 else 0 < skipped < everything


@pytest.mark.parametrize("n_results", [1, 5])
def test_a_run_that_is_not_ended_leaves_nothing_stored(bench, reference, n_results: int) -> None:
    engine = bench.engine(kv_tokens=600, wave_tokens=100)
    results(engine, bench.requests()[:3])
    assert engine._pool.used > 0
    running = engine.run(bench.requests()[:-1])
    for _ in range(n_results):
        next(running)
    running.close()
    assert engine._pool.used == 0
    before = engine.counters["tokens_prefilled"]
    request = TokenRequest(bench.prompt((0, 1), 9))
    results(engine, [request])
    assert engine.counters["tokens_prefilled"] - before == prompt_length(bench, request.prompt)
    assert largest_gap(results(engine, bench.requests()), reference) < ATOL


def test_an_answer_that_a_given_one_tells_is_not_decoded(bench) -> None:
    prompts = bench.prompts()[:6]
    plain = bench.answered(generating(prompts))
    for given, passes in ((5, 0), (2, 5)):
        engine = bench.engine(wave_tokens=100_000)
        requests = [
            TokenRequest(prompt, ((one.tokens[0] ^ 1, *one.tokens), one.tokens[:given] + one.tokens[-1:]))
            for prompt, one in zip(prompts, plain, strict=True)  # the first answer leads elsewhere at once
        ]
        for one, other in zip(results(engine, requests), plain, strict=True):
            assert one.tokens == other.tokens
            assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=ATOL)
        prefills = max(len(p.segments) for p in prompts)
        assert engine.counters["forwards"] == prefills + passes


def test_half_precision_is_as_close_to_single_as_the_stock_path(bench, folder) -> None:
    half = replace(bench, parts=load(folder, dtype="bfloat16", device="cpu"), library=Library(folder, bench.paths))
    half.library.family = replace(half.library.family, model=half.parts.model)
    rng, answers = random.Random(0), bench.answers()
    prompts = [bench.prompt(tuple(rng.sample(range(9), rng.randint(0, 4))), 9) for _ in range(10)]
    exact = [bench.library.scores(p, a) for p in prompts for a in answers]

    def distances(scored: list[list[float]]) -> torch.Tensor:
        pairs = (pair for one, other in zip(exact, scored, strict=True) for pair in zip(one, other, strict=True))
        return torch.tensor([abs(a - b) for a, b in pairs])

    stock_half = distances([half.library.scores(p, a) for p in prompts for a in answers])
    found = half.answered([TokenRequest(p, answers, False) for p in prompts])
    ours = distances([list(scores) for result in found for scores in result.scores])
    # Rounding to 8 bits in another place moves a single score either way, but not their distribution.
    for quantile in (0.5, 0.99):
        assert 0 < ours.quantile(quantile) <= 1.2 * stock_half.quantile(quantile)


def test_a_small_store_encodes_for_one_part_of_the_plan_at_a_time(bench) -> None:
    # Two queries with an image each and demonstrations of their own: a store for one part of the plan is enough.
    prompts = [bench.prompt((0, 1), 2), bench.prompt((3, 4), 5)]
    expected = bench.answered(generating(prompts), kv_tokens=300)
    engine = bench.engine(kv_tokens=300)
    probe = bench.vision()
    engine._vision._capacity = sum(features.nbytes for features in probe.features(prompts[0].images)) * 3 // 2
    assert results(engine, generating(prompts)) == expected
    assert engine.counters["images_encoded"] == 6
