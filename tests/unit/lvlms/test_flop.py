"""Counted work against the work that torch sees."""

from __future__ import annotations

import pytest
import torch
from engine_bench import results
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lever_pipe.base import rowwise
from lever_pipe.lvlms._layers import chain_pairs
from lever_pipe.lvlms._memory import prompt_mask
from lever_pipe.lvlms._requests import TokenRequest

# Norms and biases are counted with the matrices that they stand beside, and are no matrix product.
RTOL = 0.02


@pytest.fixture
def only_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out products that torch would count beside the work: rows of zeros, and the self-test of a shape."""
    monkeypatch.setattr(rowwise, "LEAST_ROWS", 1)
    monkeypatch.setattr(rowwise, "keeps_rows", lambda *_: True)


@pytest.mark.parametrize("beams", [1, 3])
def test_linear_work_is_what_torch_counts(bench, only_the_work: None, beams: int) -> None:
    prompts = [bench.prompt(shown, 9) for shown in ((9,), (9, 9), (9, 9, 9))]
    engine, counters = bench.engine(beams=beams, wave_tokens=1000)
    results(engine, [TokenRequest(bench.prompt((), 9), generate=False)])  # encodes the one image
    engine._waves._flop._pair = 0  # torch does not count the attention of a CPU
    engine._waves._options = bench.options(beams=beams, eos=(-1,))  # no row leaves early
    before = counters["flop"]
    with FlopCounterMode(display=False) as measured:
        results(engine, [TokenRequest(prompt, bench.answers()) for prompt in prompts])
    assert counters["flop"] - before == pytest.approx(measured.get_total_flops(), rel=RTOL)


@given(st.integers(1, 9), st.integers(0, 9), st.lists(st.integers(0, 4), max_size=4).map(tuple))
def test_pairs_are_the_entries_of_the_mask(size: int, past: int, branches: tuple[int, ...]) -> None:
    counted = chain_pairs(size, past) + sum(chain_pairs(count, past + size) for count in branches)
    assert counted == int(prompt_mask(size, past, branches).sum())


def test_a_vision_pass_is_what_torch_counts(bench, only_the_work: None) -> None:
    store, counters = bench.vision()
    # Torch counts attention on a CPU only where it is written out as products.
    with FlopCounterMode(display=False) as measured, torch.inference_mode(), sdpa_kernel(SDPBackend.MATH):
        store.prepare(bench.paths)
    assert counters["flop"] == pytest.approx(measured.get_total_flops(), rel=RTOL)
