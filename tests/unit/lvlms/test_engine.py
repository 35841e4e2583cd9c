from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from stock_path import StockPath

from lever_pipe.lvlms import _executor, _patches, _positions
from lever_pipe.lvlms._layers import LanguageModel
from lever_pipe.lvlms._planner import cut_shards
from lever_pipe.lvlms._requests import Result, Segment, TokenPrompt, TokenRequest, merge_requests
from lever_pipe.lvlms.qwen2_5_vl import load

# Sums of fp32 products in another order, through three layers: 1e-5 is seen, a wrong position moves 0.1 or more.
ATOL = 1e-4


def naive_scores(bench, prompt: TokenPrompt, answer: tuple[int, ...]) -> list[float]:
    return bench.stock.scores(prompt, answer)


@torch.inference_mode()
def stock_beam_score(bench, prompt: TokenPrompt, eos: tuple[int, ...], length_penalty: float) -> float:
    out = bench.parts.model.generate(
        **bench.stock.inputs(prompt),
        do_sample=False,
        num_beams=3,
        length_penalty=length_penalty,
        max_new_tokens=6,
        eos_token_id=list(eos),
        pad_token_id=bench.parts.tokenizer.pad_token_id,
        return_dict_in_generate=True,
        output_scores=True,
    )
    return float(out.sequences_scores[0])


def stock(bench, prompts: list[TokenPrompt], **options: object) -> list[tuple[int, ...]]:
    return bench.stock.tokens(prompts, bench.options(**options))


@pytest.fixture(scope="module")
def reference(bench):
    prompts, answers = bench.prompts(), bench.answers()
    return stock(bench, prompts), [[naive_scores(bench, p, a) for a in answers] for p in prompts]


@pytest.fixture(scope="module")
def frequent(bench) -> list[int]:
    """Tokens that answers really contain, so that making one the end of the turn ends them early."""
    tokens = [t for answer in stock(bench, bench.prompts()) for t in answer[:4]]
    return [token for token, _ in Counter(tokens).most_common(3)]


def largest_gap(results, reference) -> float:
    """The largest difference of a scored token, infinite where a generated token differs."""
    tokens, scores = reference
    if [r.tokens for r in results] != tokens:
        return float("inf")
    ours = [v for r in results for answer in r.scores for v in answer]
    theirs = [v for row in scores for answer in row for v in answer]
    return max(abs(one - other) for one, other in zip(ours, theirs, strict=True))


def test_the_tiny_model_reacts_to_images_and_prompts(bench, reference) -> None:
    # Without this guard a dull random model would hide every fault below; positions are guarded by the fault tests.
    digests, answer = list(bench.paths), bench.answers()[1:2]
    prompt = bench.prompt((0, 1), 9)
    swapped = TokenPrompt(tuple(Segment(s.ids, tuple(digests[2] for _ in s.images)) for s in prompt.segments))
    plain, other = bench.engine()[0].run([TokenRequest(prompt, answer), TokenRequest(swapped, answer)])
    assert max(abs(a - b) for a, b in zip(plain.scores[0], other.scores[0], strict=True)) > 0.1
    assert len(set(reference[0])) >= 8
    assert sum(len(set(tokens)) > 2 for tokens in reference[0]) >= 8  # not one token over and over


@pytest.mark.parametrize(("wave_tokens", "kv_tokens"), [(1, 100_000), (300, 4000), (100_000, 100_000), (300, 250)])
def test_greedy_tokens_and_scores_equal_the_naive_ones(bench, reference, wave_tokens: int, kv_tokens: int) -> None:
    engine, counters = bench.engine(wave_tokens=wave_tokens, kv_tokens=kv_tokens)
    assert largest_gap(engine.run(bench.requests()), reference) < ATOL
    assert counters["images_encoded"] == len({d for p in bench.prompts() for d in p.images})


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_beam_search_equals_the_stock_one(bench, length_penalty: float) -> None:
    prompts = bench.prompts()[:8]
    engine, _ = bench.engine(beams=3, length_penalty=length_penalty)
    results = engine.run([TokenRequest(p) for p in prompts])
    assert [r.tokens for r in results] == stock(bench, prompts, beams=3, length_penalty=length_penalty)
    for prompt, result in zip(prompts[:3], results, strict=False):
        expected = stock_beam_score(bench, prompt, (bench.parts.eos,), length_penalty)
        assert result.beam_score == pytest.approx(expected, abs=ATOL)
        norm = len(result.tokens) ** length_penalty
        assert sum(result.token_log_probs) / norm == pytest.approx(result.beam_score, abs=ATOL)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_early_ends_equal_the_stock_ones(bench, frequent: list[int], beams: int, index: int) -> None:
    prompts, eos = bench.prompts()[:8], (frequent[index],)
    engine, _ = bench.engine(beams=beams, eos=eos)
    results = engine.run([TokenRequest(p) for p in prompts])
    assert [r.tokens for r in results] == stock(bench, prompts, beams=beams, eos=eos)
    assert any(r.tokens[-1] == eos[0] and len(r.tokens) < 6 for r in results)


def test_several_end_tokens_in_beam_search(bench, frequent: list[int]) -> None:
    prompts, eos = bench.prompts()[:6], (frequent[0], frequent[1])
    engine, _ = bench.engine(beams=3, eos=eos)
    assert [r.tokens for r in engine.run([TokenRequest(p) for p in prompts])] == stock(bench, prompts, beams=3, eos=eos)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("penalty", [0.7, 1.05, 3.0])
def test_a_repetition_penalty_equals_the_stock_one(bench, penalty: float, beams: int) -> None:
    prompts = bench.prompts()[:8]
    engine, _ = bench.engine(beams=beams, repetition_penalty=penalty)
    tokens = [r.tokens for r in engine.run([TokenRequest(p) for p in prompts])]
    assert tokens == stock(bench, prompts, beams=beams, repetition_penalty=penalty)
    # Else the penalty could be left out unseen.
    assert penalty == 1.05 or tokens != stock(bench, prompts, beams=beams)


def test_generated_log_probs_are_those_of_scoring_the_same_tokens(bench) -> None:
    prompts = bench.prompts()[:5]
    engine, _ = bench.engine()
    for prompt, result in zip(prompts, engine.run([TokenRequest(p) for p in prompts]), strict=True):
        assert result.token_log_probs == pytest.approx(naive_scores(bench, prompt, result.tokens), abs=ATOL)


def line_layout(ids: list[int]) -> _positions.SegmentLayout:
    """Return an image whose tokens stand one behind another as text does."""
    return _positions.SegmentLayout(np.array(ids), np.arange(len(ids))[None].repeat(3, axis=0), len(ids))


FAULTS = {
    "generated tokens three too far": (_positions, "decode_positions", lambda starts, step: starts + step + 3),
    "images at text positions": (
        _patches,
        "grid_layout",
        lambda grid, merge, token: line_layout([token] * (grid[1] * grid[2] // merge**2)),
    ),
    "answers one too far": (
        _positions,
        "answer_positions",
        lambda start, count: start + 1 + torch.arange(count).numpy(),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_position_would_be_noticed(bench, reference, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    where, name, wrong = FAULTS[fault]
    monkeypatch.setattr(where, name, wrong)
    engine, _ = bench.engine()
    assert largest_gap(engine.run(bench.requests()), reference) > 100 * ATOL


def test_results_do_not_depend_on_the_order_of_the_requests(bench) -> None:
    requests = bench.requests()
    order = random.Random(0).sample(range(len(requests)), len(requests))
    plain = bench.engine()[0].run(requests)
    shuffled = bench.engine()[0].run([requests[i] for i in order])
    assert [plain[i] for i in order] == shuffled  # bit for bit


def test_requests_for_one_prompt_are_computed_together(bench) -> None:
    prompt, (one, two, *_) = bench.prompts()[2], bench.answers()
    engine, counters = bench.engine()
    seen = []
    results = engine.run(
        [TokenRequest(prompt, (two, one), False), TokenRequest(prompt), TokenRequest(prompt, (one, one))],
        on_result=lambda request, result: seen.append((request, result)),
    )
    assert [len(r.scores) for r in results] == [2, 0, 2]
    assert results[0].scores == (results[0].scores[0], results[2].scores[0])
    assert (results[0].tokens, results[1].tokens) == ((), results[2].tokens)
    assert len(seen) == 1
    assert seen[0][0] == TokenRequest(prompt, tuple(sorted((one, two))), True)
    assert counters["tokens_prefilled"] == counters["prompt_tokens"]


def test_scoring_alone_decodes_nothing(bench, reference) -> None:
    engine, counters = bench.engine(wave_tokens=100_000)
    results = engine.run([TokenRequest(p, bench.answers(), False) for p in bench.prompts()])
    depths = max(len(p.segments) for p in bench.prompts())
    assert counters["forwards"] == depths  # inner nodes depth by depth, then all leaves
    assert all(r.tokens == () for r in results)
    # Another batch shape than in the reference, so only closeness.
    gaps = [
        abs(a - b)
        for r, row in zip(results, reference[1], strict=True)
        for x, y in zip(r.scores, row, strict=True)
        for a, b in zip(x, y, strict=True)
    ]
    assert max(gaps) < ATOL


def test_text_only_prompts_work(bench) -> None:
    prompt = TokenPrompt((Segment(bench.ids("<|im_start|>user\nwhat is two<|im_end|>\n<|im_start|>assistant\n")),))
    engine, counters = bench.engine()
    assert engine.run([TokenRequest(prompt)])[0].tokens == stock(bench, [prompt])[0]
    assert counters["images_encoded"] == 0
    assert engine.run([]) == []


def prompt_length(bench, prompt: TokenPrompt) -> int:
    return int(bench.stock.inputs(prompt)["input_ids"].shape[1])


def distinct_lengths(bench, prompts: list[TokenPrompt]) -> int:
    """Tokens of all distinct beginnings of the prompts, by the stock path's own tokenisation."""
    beginnings = {p.segments[:n] for p in prompts for n in range(1, len(p.segments) + 1)}
    return sum(prompt_length(bench, TokenPrompt((s[-1],))) for s in beginnings)


@pytest.mark.parametrize("kv_tokens", [250, 600, 100_000])
def test_each_beginning_is_computed_once_over_all_chunks(bench, kv_tokens: int) -> None:
    engine, counters = bench.engine(kv_tokens=kv_tokens, wave_tokens=300)
    engine.run(bench.requests())
    distinct = list(dict.fromkeys(bench.prompts()))
    assert counters["prompt_tokens"] == sum(prompt_length(bench, p) for p in distinct)
    assert counters["tokens_prefilled"] == counters["trie_tokens_distinct"] == distinct_lengths(bench, distinct)
    assert counters["tokens_prefilled"] < 0.7 * counters["prompt_tokens"]  # there is something to share


def test_one_token_needs_no_decoding_pass(bench) -> None:
    a, b = bench.prompt((0, 1), 9), bench.prompt((0, 2), 9)
    engine, counters = bench.engine(wave_tokens=100_000, tokens=1)
    engine.run([TokenRequest(a, (bench.answers()[2],)), TokenRequest(b), TokenRequest(a)])
    assert counters["forwards"] == 4  # system, first, second demonstration, query


@pytest.mark.parametrize("kv_tokens", [250, 600, 4000])
@pytest.mark.parametrize("beams", [1, 3])
def test_memory_stays_within_the_budget_and_comes_back(bench, kv_tokens: int, beams: int) -> None:
    engine, _ = bench.engine(kv_tokens=kv_tokens, beams=beams)
    engine.run(bench.requests())
    pool = engine._executor._memory.pool
    assert 0 < pool.peak <= pool.size <= kv_tokens
    assert pool.used == sum(node.size for node in engine._resident.values()) <= kv_tokens // 2
    engine._make_room(kv_tokens)
    assert pool.used == 0
    assert sorted(pool._free) == list(range(pool.size))


@pytest.mark.parametrize("kv_tokens", [200, 250, 100_000])
def test_beginnings_up_to_the_first_image_stay_from_run_to_run(bench, kv_tokens: int) -> None:
    engine, counters = bench.engine(kv_tokens=kv_tokens, wave_tokens=300)
    first = [bench.prompt((shown,), 9) for shown in (0, 1, 2, 3, 4)]
    then = [bench.prompt((shown, 5), 8) for shown in (4, 3, 2, 1, 0)]
    found = [engine.run([TokenRequest(p, bench.answers())]) for p in (*first, *then)]
    alone = [bench.engine()[0].run([TokenRequest(p, bench.answers())]) for p in (*first, *then)]
    assert found == alone  # bit for bit

    spared = counters["prompt_tokens"] - counters["tokens_prefilled"]
    system = prompt_length(bench, TokenPrompt(first[0].segments[:1]))
    shown = [prompt_length(bench, TokenPrompt(p.segments[1:2])) for p in first]
    everything = 9 * system + sum(shown)
    # Half of the room is for beginnings; a prompt that needs it has it.
    assert spared == everything if kv_tokens == 100_000 else 0 < spared < everything


def test_a_run_that_fails_leaves_no_beginning(bench) -> None:
    engine, counters = bench.engine()
    request = TokenRequest(bench.prompt((0, 1), 9))
    engine.run([request])
    assert engine._executor._memory.pool.used > 0

    def fails(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.run([TokenRequest(bench.prompt((2,), 9))], on_result=fails)
    assert engine._executor._memory.pool.used == 0
    before = counters["tokens_prefilled"]
    engine.run([request])
    assert counters["tokens_prefilled"] - before == prompt_length(bench, request.prompt)


def test_an_answer_that_a_given_one_tells_is_not_decoded(bench) -> None:
    prompts = bench.prompts()[:6]
    plain = bench.engine()[0].run([TokenRequest(p) for p in prompts])
    for given, passes in ((5, 0), (2, 5)):
        engine, counters = bench.engine(wave_tokens=100_000)
        told = [TokenRequest(p, (one.tokens[:given] + one.tokens[-1:],)) for p, one in zip(prompts, plain, strict=True)]
        for one, other in zip(engine.run(told), plain, strict=True):
            assert one.tokens == other.tokens
            assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=ATOL)
        prefills = max(len(p.segments) for p in prompts)
        assert counters["forwards"] == prefills + passes


def test_the_model_is_left_as_found(bench) -> None:
    model, prompts = bench.parts.model, bench.prompts()[:2]
    before = StockPath(bench.parts, bench.paths).tokens(prompts, bench.options())
    state = model.model.rope_deltas
    bench.engine(beams=3)[0].run([TokenRequest(p) for p in prompts])
    assert model.model.rope_deltas is state
    assert StockPath(bench.parts, bench.paths).tokens(prompts, bench.options()) == before


def test_shards_give_the_same_answers(bench) -> None:
    whole = bench.engine()[0].run(bench.requests())
    by_request = dict(zip(bench.requests(), whole, strict=True))
    shards = cut_shards(merge_requests(bench.requests()), 3)
    assert min(map(len, shards)) > 0
    for shard in shards:
        for request, result in zip(shard, bench.engine()[0].run(shard), strict=True):
            expected = by_request[TokenRequest(request.prompt, bench.answers())]
            answers = dict(zip(bench.answers(), expected.scores, strict=True))
            assert result.tokens == expected.tokens
            found = [value for scores in result.scores for value in scores]
            # 1e-5: fp32 matrix products of another height add up in another order.
            assert found == pytest.approx([v for answer in request.answers for v in answers[answer]], abs=1e-5)


def test_half_precision_is_as_close_to_single_as_the_stock_path(bench, folder) -> None:
    half = replace(bench, parts=load(folder, dtype="bfloat16", device="cpu"))
    rng, answers = random.Random(0), bench.answers()
    prompts = [bench.prompt(tuple(rng.sample(range(9), rng.randint(0, 4))), 9) for _ in range(20)]
    exact = [naive_scores(bench, p, a) for p in prompts for a in answers]

    def distances(scored: list[list[float]]) -> torch.Tensor:
        pairs = (pair for one, other in zip(exact, scored, strict=True) for pair in zip(one, other, strict=True))
        return torch.tensor([abs(a - b) for a, b in pairs])

    stock_half = distances([naive_scores(half, p, a) for p in prompts for a in answers])
    results = half.engine()[0].run([TokenRequest(p, answers, False) for p in prompts])
    ours = distances([list(scores) for result in results for scores in result.scores])
    # Rounding to 8 bits in another place moves a single score either way, but not their distribution.
    for quantile in (0.5, 0.99):
        assert 0 < ours.quantile(quantile) <= 1.2 * stock_half.quantile(quantile)


@pytest.mark.parametrize("lines", [1, 2, 7])
def test_log_probabilities_in_blocks_are_the_same(
    bench, reference, monkeypatch: pytest.MonkeyPatch, lines: int
) -> None:
    monkeypatch.setattr(_executor, "VALUES_PER_BLOCK", lines * bench.parts.model.lm_head.weight.shape[0])
    most = []
    plain = LanguageModel.logits
    monkeypatch.setattr(LanguageModel, "logits", lambda of, hidden: most.append(hidden.shape[:-1]) or plain(of, hidden))
    engine, _ = bench.engine(wave_tokens=100_000)
    results = engine.run([TokenRequest(prompt, bench.answers(), False) for prompt in bench.prompts()])
    scored = [list(scores) for result in results for scores in result.scores]
    for one, other in zip(scored, [row for rows in reference[1] for row in rows], strict=True):
        assert one == pytest.approx(other, abs=ATOL)
    passes = [shape[0] for shape in most]
    assert max(passes) == lines
    assert sum(passes) == sum(1 + sum(len(a) - 1 for a in bench.answers()) for _ in set(bench.prompts()))


def test_a_failed_run_leaves_nothing_behind(bench, reference) -> None:
    engine, _ = bench.engine(kv_tokens=600, wave_tokens=100)
    for after in (1, 5):
        seen = []

        def stop(request: TokenRequest, _: Result, seen: list[TokenRequest] = seen, after: int = after) -> None:
            seen.append(request)
            if len(seen) == after:
                raise OSError("no space left")

        with pytest.raises(OSError, match="no space left"):
            engine.run(bench.requests(), on_result=stop)
    assert engine._executor._memory.pool.used == 0
    assert largest_gap(engine.run(bench.requests()), reference) < ATOL


def test_a_small_store_encodes_for_one_part_of_the_plan_at_a_time(bench) -> None:
    # Two queries with an image each and demonstrations of their own: a store for one part of the plan is enough.
    prompts = [bench.prompt((0, 1), 2), bench.prompt((3, 4), 5)]
    plain, _ = bench.engine(kv_tokens=300)
    expected = plain.run([TokenRequest(prompt) for prompt in prompts])
    engine, counters = bench.engine(kv_tokens=300)
    probe, _ = bench.vision()
    probe.prepare(bench.paths)
    engine._vision._capacity = sum(features.nbytes for features in probe.features(prompts[0].images)) * 3 // 2
    assert engine.run([TokenRequest(prompt) for prompt in prompts]) == expected
    assert counters["images_encoded"] == 6
