"""The fast forward pass against the stock model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lever_pipe.world.architectures import Reader, build_reader, reader_image_processor, reader_tokenizer
from lever_pipe.world.forward import (
    BOUND_KEY_LAYER,
    PackedTurns,
    ReaderOutput,
    image_features,
    pack,
    patches_of,
    read_turns,
)
from lever_pipe.world.lexicon import IMAGE_ID, PAD_ID, RELATIONS
from lever_pipe.world.training import draw_bank

N_PROMPTS, N_TURNS = 5, 4


@dataclass
class Case:
    model: Reader
    packed: PackedTurns
    slots: torch.Tensor
    fast: ReaderOutput
    inputs: dict[str, Any]  # of the stock model


def _prompts(rng: np.random.Generator) -> list[list[tuple[str, str | None]]]:
    prompts = []
    for _ in range(N_PROMPTS):
        turns: list[tuple[str, str | None]] = []
        for relation in rng.choice(len(RELATIONS), size=N_TURNS):
            chosen = RELATIONS[relation]
            turns.append((str(rng.choice(chosen.questions)), str(rng.choice(chosen.answers))))
        prompts.append(turns)
    return prompts


@pytest.fixture(scope="module")
def case() -> Case:
    rng = np.random.default_rng(0)
    model = build_reader(3).eval()
    model.set_attn_implementation("eager")  # the only one that returns its attention
    packed = pack(_prompts(rng))
    assert (packed.ids[:, -1] == PAD_ID).any()  # so that padding is tested
    bank = draw_bank(4, 0, "test")
    pixels = bank.pixels[rng.integers(len(bank.pixels), size=N_PROMPTS * N_TURNS)]
    processed = reader_image_processor()(images=[Image.fromarray(p) for p in pixels], return_tensors="pt")
    slots = torch.cat([packed.ask_slots, packed.ask_slots + 1], dim=1)
    with torch.no_grad():
        features = image_features(model.model.visual, patches_of(pixels))
        shaped = features.view(N_PROMPTS, N_TURNS, 4, -1)
        fast = read_turns(model, packed, shaped, slots, want_attention=True)
    inputs = {
        "input_ids": packed.ids,
        "attention_mask": (packed.ids != PAD_ID).long(),
        "mm_token_type_ids": (packed.ids == IMAGE_ID).int(),
        "pixel_values": processed["pixel_values"],
        "image_grid_thw": processed["image_grid_thw"],
    }
    return Case(model, packed, slots, fast, inputs)


@pytest.fixture(scope="module")
def stock(case: Case) -> Any:
    with torch.no_grad():
        return case.model(**case.inputs, output_hidden_states=True, output_attentions=True)


def _at(states: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    return states.gather(1, slots[..., None].expand(-1, -1, states.shape[-1]))


def test_patches_are_the_image_processors(case: Case) -> None:
    pixels = np.random.default_rng(1).integers(256, size=(2, 56, 56, 3), dtype=np.uint8)
    stock = reader_image_processor()(images=[Image.fromarray(p) for p in pixels], return_tensors="pt")
    values = stock["pixel_values"].view(2, 16, 3, 2, 196)
    ours = patches_of(pixels).float() / 127.5 - 1
    for frame in range(2):
        # The processor multiplies by 1 / 255, which rounds: a few units of 2**-23 at size one.
        torch.testing.assert_close(values[:, :, :, frame].reshape(2, 16, 588), ours, atol=1e-6, rtol=0)


def test_logits_equal_the_stock_models(case: Case, stock: Any) -> None:
    # Logits are of size one; fused kernels and one summed patch weight reorder float32 sums.
    torch.testing.assert_close(case.fast.logits, _at(stock.logits, case.slots), atol=5e-5, rtol=0)


def test_hidden_states_are_those_after_the_named_layer(case: Case, stock: Any) -> None:
    # hidden_states[0] is the embedding, so the output of layer i has index i + 1.
    wanted = _at(stock.hidden_states[BOUND_KEY_LAYER + 1], case.slots)
    torch.testing.assert_close(case.fast.hidden, wanted, atol=5e-5, rtol=0)


def test_log_attention_is_the_last_layers_first_group(case: Case, stock: Any) -> None:
    # Four heads and two key-value groups: the first group serves heads 0 and 1.
    heads = stock.attentions[-1][:, :2]
    index = case.slots[:, None, :, None].expand(-1, 2, -1, heads.shape[-1])
    assert case.fast.log_attention is not None
    torch.testing.assert_close(case.fast.log_attention.exp(), heads.gather(2, index), atol=1e-5, rtol=0)


def test_positions_are_the_stock_rope_index(case: Case) -> None:
    wanted, _ = case.model.model.get_rope_index(
        case.packed.ids,
        case.inputs["mm_token_type_ids"],
        case.inputs["image_grid_thw"],
        attention_mask=case.inputs["attention_mask"],
    )
    is_token = case.inputs["attention_mask"].bool()
    assert torch.equal(case.packed.positions[:, is_token], wanted[:, is_token])


def test_packing_is_the_tokenizer_on_the_chat_template() -> None:
    tokenizer = reader_tokenizer()
    turns = [("what is this made of?", "wood"), ("how many are there?", None)]
    messages = []
    for question, answer in turns:
        messages.append({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]})
        if answer is not None:
            messages.append({"role": "assistant", "content": [{"type": "text", "text": answer}]})
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    expanded = text.replace("<|image_pad|>", "<|image_pad|>" * 4)
    packed = pack([turns])
    assert packed.ids[0].tolist() == tokenizer(expanded)["input_ids"]
    # The question is asked at the last token, the open `assistant`.
    assert packed.ask_slots[0, -1] == packed.ids.shape[1] - 1
