"""On a CUDA device torch's kernel reads the pages rightly: in bf16 as near to fp32 as the stock model is."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import tiny_qwen2_5_vl
import torch
from transformers import Qwen2_5_VLForConditionalGeneration

from lever_pipe.lvlms import _paged, _paged_choice
from lever_pipe.lvlms._decoding import DecodeOptions
from lever_pipe.lvlms._engine import Engine
from lever_pipe.lvlms._layers import LanguageModel
from lever_pipe.lvlms._memory import SlotMemory
from lever_pipe.lvlms._packed import PackedExecutor
from lever_pipe.lvlms._planner import Budget
from lever_pipe.lvlms._requests import Segment, TokenPrompt, TokenRequest

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

NEW_TOKENS, BEAMS = 5, 3
BUDGET = Budget(2000, 6000, 4096, NEW_TOKENS, BEAMS)
SIZES = {"stored": BUDGET.stored, "spare": BUDGET.spare}


def small_model() -> Any:
    """Return a random model with the head width, and the ratio of heads to kv heads, of the real 3B one, in fp32."""
    with TemporaryDirectory() as folder:
        tiny_qwen2_5_vl.save(Path(folder))
        tiny = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder)
    config = copy.deepcopy(tiny.config)
    text = config.text_config
    text.hidden_size, text.num_attention_heads, text.num_key_value_heads = 1024, 8, 1
    text.intermediate_size, config.vision_config.out_hidden_size = 1024, 1024
    text.rope_parameters = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [16, 24, 24]}
    model = type(tiny)(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2:
                # Such that outputs react to what stands before them; the usual 0.02 would hide every fault.
                deviation = 0.04 if "embed_tokens" in name else 0.75 * parameter.shape[-1] ** -0.5
                parameter.normal_(0, deviation, generator=generator)
    return model


def requests() -> list[TokenRequest]:
    """Return prompts that share beginnings of several pages, with several hundred tokens of answers."""
    rng = np.random.default_rng(0)

    def draw(low: int, high: int) -> tuple[int, ...]:
        return tuple(map(int, rng.integers(10, 270, size=rng.integers(low, high))))

    system, *shown = (Segment(draw(20, 400)) for _ in range(6))
    prompts = [TokenPrompt((system, shown[i % 5], shown[i % 3], Segment(draw(10, 150)))) for i in range(40)]
    return [TokenRequest(prompt, tuple(draw(1, 8) for _ in range(5))) for prompt in prompts]


@torch.inference_mode()
def naive_scores(model: Any, asked: list[TokenRequest]) -> Any:
    """Return the log-probabilities of all answers, each by a forward of its own."""
    found = []
    for request in asked:
        prompt = [token for segment in request.prompt.segments for token in segment.ids]
        for answer in request.answers:
            ids = torch.tensor([[*prompt, *answer]], device=model.device)
            lines = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
            found += lines.gather(1, ids[0, len(prompt) :, None])[:, 0].tolist()
    return np.array(found)


def language_of(model: Any) -> LanguageModel:
    return LanguageModel(model.model.language_model, model.lm_head, axes=3, image_token=model.config.image_token_id)


def engine_scores(model: Any, asked: list[TokenRequest], memory: Any) -> Any:
    """Return the same by the engine, which generates by beam search besides."""
    images: Any = _paged_choice._NoImages()
    options = DecodeOptions((2,), NEW_TOKENS, BEAMS)
    executor = PackedExecutor(language_of(model), images, memory=memory, options=options, counters=Counter())
    results = Engine(language_of(model), images, executor=executor, budget=BUDGET, counters=Counter()).run(asked)
    return np.array([value for r in results for line in r.scores for value in line])


def compare(device: str, **choice: Any) -> None:
    exact = small_model()
    model = copy.deepcopy(exact).to(device, torch.bfloat16)
    asked = requests()
    truth = engine_scores(exact, asked, SlotMemory(language_of(exact), **SIZES))
    memory = _paged_choice.choose_memory(language_of(model), **SIZES, **choice)
    assert isinstance(memory, _paged.PagedMemory)
    ours = engine_scores(model, asked, memory)
    assert memory.pool.used == 0
    naive = naive_scores(model, asked)
    for quantile in (0.5, 0.99):
        off, allowed = (np.quantile(np.abs(scores - truth), quantile) for scores in (ours, naive))
        assert off <= 1.2 * allowed, (quantile, off, allowed)
    assert sorted(engine_scores(model, asked[::-1], memory)) == sorted(ours)  # bit for bit


def test_scores_are_as_near_to_fp32_as_those_of_the_stock_model() -> None:
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("this device has no kernel for pages")
    compare("cuda")


@pytest.mark.parametrize("page", _paged_choice.PAGES)
def test_every_page_size_is_right_or_refused(page: int) -> None:
    model = small_model().to("cuda", torch.bfloat16)
    faults = {
        name: _paged_choice.self_test(language_of(model), page=page, kernel=k)
        for name, k in _paged_choice.torch_kernels().items()
    }
    # A kernel may refuse a page size with an error; it must never accept one and read wrongly.
    assert not [fault for fault in faults.values() if fault and fault.startswith("log-probabilities")], faults
