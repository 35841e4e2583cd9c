from __future__ import annotations

import copy
import inspect
import logging
import random
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from test_engine import ATOL, largest_gap, naive_scores, stock, stock_beam_score
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention

from lever_pipe.lvlms import _paged, _paged_choice, _pages
from lever_pipe.lvlms._engine import Engine
from lever_pipe.lvlms._memory import SlotMemory
from lever_pipe.lvlms._packed import PackedExecutor
from lever_pipe.lvlms._paged import PagedMemory
from lever_pipe.lvlms._paged_choice import choose_memory, self_test, unusable
from lever_pipe.lvlms._pages import PagePool
from lever_pipe.lvlms._planner import Budget
from lever_pipe.lvlms._requests import Segment, TokenPrompt, TokenRequest

PAGES = (4, 16, 256)


def emulated_varlen(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *,
    scale, window_size, enable_gqa, seqused_k, block_table, num_splits, shift=None,
):  # fmt: skip
    """What `varlen_attn` computes for these arguments, sequence by sequence, on any device."""
    assert (window_size, enable_gqa, num_splits) == ((-1, 0), True, 1)
    assert {t.dtype for t in (cu_seq_q, seqused_k, block_table)} == {torch.int32}
    assert block_table.is_contiguous() and query.is_contiguous()
    sizes = cu_seq_q.diff()
    assert (int(sizes.max()), int(seqused_k.max()), int(cu_seq_q[-1])) == (max_q, max_k, len(query))
    read = torch.empty_like(query)
    for row, (begin, end, used) in enumerate(zip(cu_seq_q[:-1], cu_seq_q[1:], seqused_k.tolist(), strict=True)):
        n, frames = int(end - begin), block_table[row, : -(-used // key.shape[1])]
        keys, values = (t[frames].flatten(0, 1)[:used].transpose(0, 1).float() for t in (key, value))
        shared = query.shape[1] // len(keys)
        seen = torch.ones(n, used, dtype=torch.bool).tril(used - n if shift is None else shift)
        read[begin:end] = scaled_dot_product_attention(
            query[begin:end].transpose(0, 1).float(),
            keys.repeat_interleave(shared, dim=0),
            values.repeat_interleave(shared, dim=0),
            attn_mask=seen.to(query.device),
            scale=scale,
        ).transpose(0, 1)
    return read


def one_key_more(query, key, *args, seqused_k, block_table, **kw):
    more = (seqused_k + 1).clamp(max=block_table.shape[1] * key.shape[1])
    return emulated_varlen(query, key, *args[:-1], int(more.max()), seqused_k=more, block_table=block_table, **kw)


def one_key_less(*args, seqused_k, **kw):
    fewer = (seqused_k - 1).clamp(min=1)
    return emulated_varlen(*args[:6], int(fewer.max()), seqused_k=fewer, **kw)


def aligned_to_the_start(*args, **kw):
    return emulated_varlen(*args, shift=0, **kw)


def without_the_last_page(*args, block_table, **kw):
    table = block_table.clone()
    table[:, -1] = 0
    return emulated_varlen(*args, block_table=table, **kw)


def first_layer_only(*args, block_table, **kw):
    return emulated_varlen(*args, block_table=block_table // 3 * 3, **kw)


WRONG_KERNELS = (one_key_more, one_key_less, aligned_to_the_start, without_the_last_page, first_layer_only)


def only_from(smallest: int, kernel=emulated_varlen, otherwise=None):
    """A kernel for pages from a size on; smaller ones are refused, or read wrongly."""

    def call(query, key, *args, **kw):
        if key.shape[1] >= smallest:
            return kernel(query, key, *args, **kw)
        if otherwise is None:
            raise RuntimeError(f"pages must be multiples of {smallest}\nmore lines")
        return otherwise(query, key, *args, **kw)

    return call


def paged(
    bench,
    *,
    page: int,
    kernel=emulated_varlen,
    beams: int = 1,
    wave_tokens: int = 700,
    kv_tokens: int = 4000,
    tokens: int = 6,
    **options,
) -> tuple[Engine, PagedMemory]:
    store, counters = bench.vision()
    budget = Budget(wave_tokens, kv_tokens, 4096, tokens, beams)
    language = bench.parts.language
    memory = PagedMemory(language, stored=kv_tokens, spare=budget.spare, page=page, kernel=kernel)
    decode = bench.options(beams=beams, tokens=tokens, **options)
    executor = PackedExecutor(language, store, memory=memory, options=decode, counters=counters)
    return Engine(language, store, executor=executor, budget=budget, counters=counters), memory


@pytest.fixture(scope="module")
def reference(bench):
    prompts, answers = bench.prompts(), bench.answers()
    return stock(bench, prompts), [[naive_scores(bench, p, a) for a in answers] for p in prompts]


@pytest.fixture(scope="module")
def beam_reference(bench, reference):
    return stock(bench, bench.prompts(), beams=3), reference[1]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("wave_tokens", "kv_tokens"), [(1, 100_000), (300, 4000), (100_000, 100_000), (300, 250)])
def test_greedy_tokens_and_scores_equal_the_naive_ones(bench, reference, page, wave_tokens, kv_tokens) -> None:
    engine, memory = paged(bench, page=page, wave_tokens=wave_tokens, kv_tokens=kv_tokens)
    assert largest_gap(engine.run(bench.requests()), reference) < ATOL
    assert_nothing_is_left(memory)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("wave_tokens", "kv_tokens"), [(1, 100_000), (700, 4000), (300, 280)])
def test_beams_and_scores_equal_the_naive_ones(bench, beam_reference, page, wave_tokens, kv_tokens) -> None:
    engine, memory = paged(bench, page=page, beams=3, wave_tokens=wave_tokens, kv_tokens=kv_tokens)
    assert largest_gap(engine.run(bench.requests()), beam_reference) < ATOL
    assert_nothing_is_left(memory)


def test_beam_scores_equal_the_stock_ones(bench) -> None:
    prompts, eos = bench.prompts()[2:6], (bench.parts.eos,)
    engine, _ = paged(bench, page=16, beams=3, length_penalty=1.0)
    for prompt, result in zip(prompts, engine.run([TokenRequest(p) for p in prompts]), strict=True):
        assert result.beam_score == pytest.approx(stock_beam_score(bench, prompt, eos, 1.0), abs=ATOL)


@pytest.mark.parametrize("page", [4, 64])
@pytest.mark.parametrize("beams", [1, 3])
def test_early_ends_equal_the_stock_ones(bench, reference, page: int, beams: int) -> None:
    prompts = bench.prompts()[:8]
    frequent = Counter(t for answer in reference[0] for t in answer[:4]).most_common(2)
    for eos in [(token,) for token, _ in frequent]:
        engine, memory = paged(bench, page=page, beams=beams, eos=eos)
        results = engine.run([TokenRequest(p) for p in prompts])
        assert [r.tokens for r in results] == stock(bench, prompts, beams=beams, eos=eos)
        assert any(len(r.tokens) < 6 for r in results)
        assert_nothing_is_left(memory)


def assert_nothing_is_left(memory: PagedMemory) -> None:
    """Nothing but the beginnings that stay for the next run."""
    pool = memory.pool
    assert 0 < pool.peak <= pool.size
    assert all(node.resident for node in memory.kept())
    memory.release(memory.kept())
    assert pool.used == 0
    assert memory.tables == {}
    assert sorted(pool._free) == list(range(pool.size))
    assert len(pool.keys) == len(pool.values) == pool.size * pool.layers


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("beams", [1, 3])
def test_nothing_is_read_that_was_not_written(bench, reference, beam_reference, page: int, beams: int) -> None:
    engine, memory = paged(bench, page=page, beams=beams)
    memory.pool.keys.fill_(float("nan"))
    memory.pool.values.fill_(float("nan"))
    assert largest_gap(engine.run(bench.requests()), reference if beams == 1 else beam_reference) < ATOL


@pytest.mark.parametrize("kernel", WRONG_KERNELS)
def test_a_kernel_that_reads_wrongly_would_be_noticed(bench, reference, kernel) -> None:
    engine, _ = paged(bench, page=16, kernel=kernel)
    assert largest_gap(engine.run(bench.requests()), reference) > 100 * ATOL


@pytest.mark.parametrize("beams", [1, 3])
def test_without_copies_of_partly_filled_pages_results_would_differ(bench, reference, monkeypatch, beams) -> None:
    monkeypatch.setattr(PagePool, "copy", lambda *_: None)
    engine, _ = paged(bench, page=16, beams=beams)
    assert largest_gap(engine.run([TokenRequest(p, bench.answers()) for p in bench.prompts()]), reference) > 100 * ATOL


def test_copies_for_answers_and_for_beams_matter_each(bench, reference, beam_reference, monkeypatch) -> None:
    # Only copies to scratch frames are skipped: those of given answers and of generated tokens.
    plain = _paged._Copy.__call__

    def stored_only(self, *args):
        if self.targets.stride == _pages.STORED:
            plain(self, *args)

    monkeypatch.setattr(_paged._Copy, "__call__", stored_only)
    answers = paged(bench, page=16)[0].run([TokenRequest(p, bench.answers(), False) for p in bench.prompts()])
    assert largest_gap(answers, ([()] * len(answers), reference[1])) > 100 * ATOL
    beams = paged(bench, page=16, beams=3)[0].run([TokenRequest(p) for p in bench.prompts()])
    assert [r.tokens for r in beams] != beam_reference[0]


def test_beams_must_read_their_own_ancestors(bench, beam_reference, monkeypatch) -> None:
    plain = _paged._PagedWave.step

    def same_place(self, alive, step, visible):
        width = visible.shape[1]
        wrong = torch.eye(width, dtype=torch.bool).repeat(1, step + 1).expand_as(visible)
        return plain(self, alive, step, wrong)

    monkeypatch.setattr(_paged._PagedWave, "step", same_place)
    results = paged(bench, page=16, beams=3)[0].run([TokenRequest(p) for p in bench.prompts()])
    assert [r.tokens for r in results] != beam_reference[0]


def test_results_do_not_depend_on_the_order_of_the_requests(bench) -> None:
    requests = bench.requests()
    plain = paged(bench, page=16, beams=3)[0].run(requests)
    assert paged(bench, page=16, beams=3)[0].run(requests[::-1])[::-1] == plain  # bit for bit


@pytest.mark.parametrize("seed", range(30))
def test_pages_and_slots_agree_on_random_requests(bench, seed: int) -> None:
    draw = random.Random(seed)
    page, beams, tokens = draw.choice([1, 3, 4, 7, 16]), draw.choice([1, 2, 3, 4]), draw.choice([1, 2, 4, 8])
    sizes = [draw.choice([1, page - 1, page, page + 1, 2 * page, draw.randint(1, 40)]) or 1 for _ in range(5)]
    segments = [Segment(tuple(draw.choices(range(10, 270), k=size))) for size in sizes]
    requests = [
        TokenRequest(
            TokenPrompt(tuple(draw.choices(segments, k=draw.randint(1, 4)))),
            tuple(tuple(draw.choices(range(10, 270), k=draw.randint(1, 9))) for _ in range(draw.randint(0, 4))),
            draw.random() < 0.8,
        )
        for _ in range(draw.randint(1, 10))
    ]
    options = {
        "beams": beams,
        "tokens": tokens,
        "eos": tuple(draw.sample(range(10, 270), draw.choice([1, 60]))),
        "wave_tokens": draw.choice([1, 50, 300, 5000]),
        "kv_tokens": draw.choice([420, 5000]),
    }
    engine, memory = paged(bench, page=page, **options)
    ours, theirs = engine.run(requests), bench.engine(**options)[0].run(requests)
    assert [r.tokens for r in ours] == [r.tokens for r in theirs]
    for one, other in zip(ours, theirs, strict=True):
        for a, b in zip((*one.scores, one.token_log_probs), (*other.scores, other.token_log_probs), strict=True):
            assert a == pytest.approx(b, abs=ATOL)
    assert_nothing_is_left(memory)


class Recorder:
    """The emulated kernel, and what it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple, dict]] = []

    def __call__(self, *args, **kw):
        self.calls.append((args, kw))
        return emulated_varlen(*args, **kw)


def test_the_last_layer_asks_for_what_is_read_only(bench) -> None:
    kernel, answers = Recorder(), bench.answers()
    paged(bench, page=16, kernel=kernel, tokens=1)[0].run([TokenRequest(bench.prompt((0,), 9), answers)])
    fed = [len(answer) - 1 for answer in sorted(answers) if len(answer) > 1]
    system, demonstration, leaf = [kernel.calls[i : i + 3] for i in (0, 2, 4)]
    assert len(kernel.calls) == 2 + 2 + 3  # nobody reads the last layer of the beginnings
    assert all(len(call[0][3]) == 2 for call in [*system[:2], *demonstration[:2]])
    assert leaf[1][0][3].diff().tolist()[1:] == fed
    assert leaf[2][0][3].diff().tolist() == [1, *fed]
    assert torch.equal(leaf[1][1]["seqused_k"], leaf[2][1]["seqused_k"])


def test_whole_pages_are_shared_by_reference(bench) -> None:
    kernel = Recorder()
    requests = [TokenRequest(bench.prompt((0, 1), q), bench.answers()) for q in (8, 9)]
    paged(bench, page=4, kernel=kernel, tokens=1)[0].run(requests)
    table, used = kernel.calls[-1][1]["block_table"], kernel.calls[-1][1]["seqused_k"]
    n = len(used) // 2
    longest = [int(used[i]) - 1 for i in (0, n)]  # tokens of the prompts, at least
    shared = (table[0] == table[n]).long().cumprod(0).sum() * 4
    beginning = sum(len(p) for p in [bench.prompt((0, 1), 9).segments[0].ids])
    assert beginning < int(shared) < min(longest)
    for row in range(1, n):
        whole = int(used[0]) // 4
        assert torch.equal(table[row, :whole], table[0, :whole])
        assert table[row, whole] not in table[0]


@pytest.mark.parametrize("page", [16, 64])
def test_answers_and_beams_take_one_frame_for_all_layers(bench, page: int) -> None:
    prompt = TokenPrompt((Segment(bench.ids("<|im_start|>user\n" + "what is two " * 9)),))
    length, layers, answers = len(prompt.segments[0].ids), 3, [(1, 2), (3, 4), (5, 6, 7), (8, 9), (8,)]
    engine, memory = paged(bench, page=page, beams=3)
    engine.run([TokenRequest(prompt, tuple(answers))])

    def own(size: int) -> int:
        return -(-(length + size) // page) - length // page

    scratch = [own(len(answer) - 1) for answer in answers if len(answer) > 1], [own(5)] * 3
    generated = -(-5 * 3 // page)
    assert memory.pool.peak == -(-length // page) + sum(-(-sum(s) // layers) for s in scratch) + generated


def test_the_pool_grows_instead_of_failing(bench, reference) -> None:
    # Every node fills its last page in part, so 250 tokens need more than the 4 pages that they would fill.
    engine, memory = paged(bench, page=64, kv_tokens=250)
    assert memory.pool.size == 4
    assert largest_gap(engine.run(bench.requests()), reference) < ATOL
    assert 4 < memory.pool.peak <= memory.pool.size
    assert_nothing_is_left(memory)


def test_growing_keeps_what_is_stored(bench) -> None:
    pool = PagePool(bench.parts.language, 2, 4)
    pages = pool.take(2)
    slots = torch.arange(2 * 3 * 4)
    kept = torch.randn(slots.numel(), 2, 16, generator=torch.Generator().manual_seed(0))
    pool.write(slots, kept, -kept)
    more = pool.take(3)
    assert sorted([*pages, *more]) == list(range(5))
    assert torch.equal(pool.keys.flatten(0, 1)[: len(kept)], kept)
    assert torch.equal(pool.values.flatten(0, 1)[: len(kept)], -kept)
    assert not pool.keys.flatten(0, 1)[len(kept) :].any()
    assert (pool.size, pool.used, pool.peak) == (5, 5, 5)


# choosing a memory


def choose(bench, kernels, **kw):
    return choose_memory(bench.parts.language, stored=4000, spare=15, kernels=kernels, **kw)


@pytest.mark.parametrize(("page", "dtype"), [(16, torch.bfloat16), (256, torch.float32)])
@pytest.mark.parametrize("kernel", [None, *WRONG_KERNELS])
def test_the_self_test_finds_wrong_kernels(bench, page: int, dtype, kernel) -> None:
    model = copy.deepcopy(bench.parts.model).to(dtype)
    language = replace(bench.parts.language, decoder=model.model.language_model, head=model.lm_head)
    fault = self_test(language, page=page, kernel=kernel or emulated_varlen)
    assert (fault is None) == (kernel is None), fault


def test_the_self_test_finds_wrong_layouts(bench, monkeypatch) -> None:
    monkeypatch.setattr(PagePool, "copy", lambda *_: None)
    assert "off by" in self_test(bench.parts.language, page=64, kernel=emulated_varlen)


def test_the_first_page_size_that_works_is_chosen(bench, caplog) -> None:
    with caplog.at_level(logging.INFO):
        memory = choose(bench, {"a": only_from(64), "b": only_from(64, otherwise=without_the_last_page)})
    assert isinstance(memory, PagedMemory)
    assert (memory.pool.page, memory.kind) == (64, "pages of 64, a")
    [record] = caplog.records
    assert record.message.startswith("keys and values in pages of 64 tokens, read by a; before it: a with pages of 16")
    assert "RuntimeError: pages must be multiples of 64; b with pages of 16: log-probabilities" in record.message
    assert "more lines" not in record.message


def test_slots_are_the_way_out(bench, caplog) -> None:
    with caplog.at_level(logging.INFO):
        memory = choose(bench, {"a": without_the_last_page}, pages=(16, 64))
        plain = choose_memory(bench.parts.language, stored=4000, spare=15)
    assert isinstance(memory, SlotMemory) and isinstance(plain, SlotMemory)
    assert memory.pool.size == 4000
    tried, untried = (record.message for record in caplog.records)
    assert tried.startswith(
        "keys and values by slot, not in pages: a with pages of 16: log-probabilities of a prompt are"
    )
    assert untried == "keys and values by slot, not in pages: a cpu device has no kernel for pages"


def test_what_cannot_work_is_not_tried(monkeypatch) -> None:
    cuda = torch.device("cuda")
    assert unusable(SimpleNamespace(device=cuda, dtype=torch.bfloat16)) is None
    assert "not float32" in unusable(SimpleNamespace(device=cuda, dtype=torch.float32))
    monkeypatch.setattr(torch.nn.attention.varlen, "varlen_attn", lambda query, seqused_k: None)
    why = unusable(SimpleNamespace(device=cuda, dtype=torch.float16))
    assert why == "this torch's varlen_attn has no block_table, num_splits"


def test_torch_takes_the_arguments(bench) -> None:
    recorder = Recorder()
    paged(bench, page=16, kernel=recorder, tokens=1)[0].run(bench.requests()[:1])
    args, kw = recorder.calls[0]
    assert inspect.signature(varlen_attn).bind(*args, **kw)
    assert next(iter(_paged_choice.torch_kernels().values())) is varlen_attn


def test_key_ends_are_the_sums_of_the_key_counts(bench, reference) -> None:
    recorder = Recorder()
    engine, _ = paged(bench, page=16, kernel=_paged_choice.with_key_ends(recorder))
    assert largest_gap(engine.run(bench.requests()), reference) < ATOL
    for args, kw in recorder.calls:
        assert args[4].dtype == torch.int32
        assert args[4].tolist() == [0, *kw["seqused_k"].cumsum(0).tolist()]
