"""What a model remembers of dialogues, against plain forward passes over the whole of each; work is counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from agent_doubles import CODEC
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from lever_pipe.base.rowwise import rowwise
from lever_pipe.experiment.agent_model import TinyQwen3
from lever_pipe.intention.agent.generation import GROWTH, DialogueCache
from lever_pipe.intention.agent.policy import build_tiny
from lever_pipe.intention.agent.scoring import score

# The published bound for float32.
BOUND = 1e-4
PROMPTS = [[5, 6, 7], [5, 6, 7], [9] * 12, [5, 6, 7]]
PASSES = [
    ([0, 2, 3], [[8], [1], [2]]),
    ([2], [[3]]),
    ([0, 1, 2, 3], [[4, 4, 4], [11], [12, 13], [1] * (GROWTH + 9)]),
    ([1, 3], [[2], [3]]),
]
"""Row indices and tokens, after the prompts: unequal texts, rows that wait, and more than the memory's capacity."""


def qwen3(**sizes: int) -> Any:
    return build_tiny(TinyQwen3(**sizes), CODEC.vocabulary_size, 0)


SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}


def llama(kv_heads: int = 1) -> Any:
    settings = LlamaConfig(vocab_size=CODEC.vocabulary_size, num_key_value_heads=kv_heads, **SIZES)
    return rowwise(LlamaForCausalLM(settings).eval())


def qwen2() -> Any:
    return rowwise(
        Qwen2ForCausalLM(Qwen2Config(vocab_size=CODEC.vocabulary_size, num_key_value_heads=1, **SIZES)).eval()
    )


@contextmanager
def tokens_read(model: Any) -> Iterator[list[int]]:
    """Count the tokens of each forward pass."""
    counts: list[int] = []
    handle = model.get_input_embeddings().register_forward_hook(lambda _, inputs, __: counts.append(inputs[0].numel()))
    yield counts
    handle.remove()


@torch.no_grad()
def logits_after(model: Any, text: Sequence[int]) -> torch.Tensor:
    return torch.as_tensor(model(input_ids=torch.tensor([list(text)])).logits[0, -1])


@pytest.mark.parametrize(
    "make",
    [
        *(qwen3, lambda: qwen3(layers=3, heads=4, kv_heads=4), lambda: qwen3(layers=1, heads=6, kv_heads=2)),
        *(llama, lambda: llama(2), qwen2),
    ],
)
def test_rows_read_what_a_plain_forward_pass_reads(make: Any) -> None:
    model = make()
    rows, texts = DialogueCache(model, len(PROMPTS)), [list(prompt) for prompt in PROMPTS]
    found = rows.read(range(len(texts)), texts)
    assert torch.allclose(found, torch.stack([logits_after(model, text) for text in texts]), rtol=0, atol=BOUND)
    for chosen, more in PASSES:
        for row, text in zip(chosen, more, strict=True):
            texts[row] += text
        found = rows.read(chosen, more)
        expected = torch.stack([logits_after(model, texts[row]) for row in chosen])
        assert torch.allclose(found, expected, rtol=0, atol=BOUND)
    rows.keep([1, 3])
    expected = torch.stack([logits_after(model, [*texts[row], 7, 8]) for row in (1, 3)])
    assert torch.allclose(rows.read([0, 1], [[7, 8]] * 2), expected, rtol=0, atol=BOUND)


def test_equal_prompts_are_read_once_and_rows_that_wait_not_at_all() -> None:
    model = qwen3()
    rows = DialogueCache(model, len(PROMPTS))
    with tokens_read(model) as counts:
        rows.read(range(len(PROMPTS)), PROMPTS)
        for chosen, texts in PASSES:
            rows.read(chosen, texts)
    assert counts == [3 + 12, *(sum(map(len, texts)) for _, texts in PASSES)]


@pytest.mark.parametrize("make", [qwen3, llama, qwen2])
def test_scores_and_gradients_are_those_of_the_stock_pass_and_end_at_the_chosen_places(make: Any) -> None:
    model = make()
    sequences = [torch.tensor([5, 6, 7, 8, 9, 1, 2, 3]), torch.tensor([9, 1, 2, 3, 9])]
    positions = [torch.tensor([3, 7]), torch.tensor([1, 4, 3])]
    seen: list[int] = []
    for layer in model.model.layers:
        layer.mlp.register_forward_hook(
            lambda _, inputs, __: seen.append(inputs[0].numel() // model.config.hidden_size)
        )
    scored = partial(score, model, sequences, positions, pad_id=0, temperature=0.7, entropies=True)

    def gradients(found: Any) -> list[torch.Tensor]:
        loss = (found.log_probs * torch.arange(5)).sum() - found.entropies.sum()
        return list(torch.autograd.grad(loss, list(model.parameters())))

    found = scored()
    assert seen == [16, 5]
    model.activation_checkpointing_enable({"use_reentrant": False})
    stock = scored()
    assert seen[2:] == [16, 16]
    assert torch.equal(torch.stack(tuple(found)), torch.stack(tuple(stock)))  # type: ignore[arg-type]
    for mine, theirs in zip(gradients(found), gradients(stock), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5)  # float32, added in another order
