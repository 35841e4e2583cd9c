from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from trained_world import TINY
from transformers import LlamaConfig, LlamaForCausalLM

from lever_pipe.base.rowwise import rowwise
from lever_pipe.intention.agent.policy import build_tiny
from lever_pipe.intention.agent.scoring import score

LENGTHS = (9, 4, 12)
# Sums of 32 products in another order.
ROUNDING = 2e-6


def llama() -> Any:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    return rowwise(LlamaForCausalLM(LlamaConfig(vocab_size=63, num_key_value_heads=1, **sizes)).eval())


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
@pytest.mark.parametrize("n_alike", [127, 128, 160])
def test_what_texts_begin_with_alike_is_read_once_and_moves_no_score_nor_gradient(kind: str, n_alike: int) -> None:
    model = {"qwen3": lambda: build_tiny(TINY, 63, 0), "llama": llama}[kind]()
    numbers = torch.Generator().manual_seed(0)
    start = torch.randint(1, 63, (n_alike,), generator=numbers)
    texts = [torch.cat([start, torch.randint(1, 63, (length,), generator=numbers)]) for length in LENGTHS]
    for number, text in enumerate(texts):
        text[n_alike] = number  # only the start is equal
    first = n_alike - 5 if n_alike > 128 else n_alike + 1  # the state before a position may be in the equal part
    positions = [torch.tensor([first]), torch.tensor([n_alike + 3]), torch.tensor([n_alike + 2, n_alike + 11])]
    seen: list[int] = []
    model.get_input_embeddings().register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].numel()))
    scored = partial(score, model, pad_id=0, temperature=0.7, entropies=False, shared=True)
    together = scored(texts, positions).log_probs
    alone = torch.cat([scored([text], [at]).log_probs for text, at in zip(texts, positions, strict=True)])
    once = 0 if n_alike < 128 else min(n_alike, first - 1)
    assert seen[0] == once + 3 * (len(texts[2]) - once)
    assert together.tolist() == pytest.approx(alone.tolist(), abs=ROUNDING)
    weights = torch.arange(1.0, 5)
    found, expected = (torch.autograd.grad((of * weights).sum(), list(model.parameters())) for of in (together, alone))
    for one, two in zip(found, expected, strict=True):
        assert torch.allclose(one, two, rtol=0, atol=1e-4)
