"""The same prompts through the stock `generate`, pixels and all: slow, independent, for cross-checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from lever_pipe.lvlms._decoding import DecodeOptions
from lever_pipe.lvlms._folder import Parts
from lever_pipe.lvlms._requests import Prompt

if TYPE_CHECKING:
    from PIL.Image import Image

PROMPTS_PER_BATCH = 32


@torch.inference_mode()
def stock_tokens(
    parts: Parts,
    prompts: Sequence[Prompt],
    *,
    open_image: Callable[[str], Image],
    options: DecodeOptions,
    batch_size: int = PROMPTS_PER_BATCH,
) -> list[tuple[int, ...]]:
    """Return the generated tokens of each prompt, up to and with the end of the turn."""
    answers: list[tuple[int, ...]] = []
    for start in range(0, len(prompts), batch_size):
        inputs = _inputs(parts, prompts[start : start + batch_size], open_image)
        # A length penalty without beams is refused with a warning.
        beams = {"length_penalty": options.length_penalty} if options.num_beams > 1 else {}
        generated = parts.model.generate(
            **inputs,
            **beams,
            do_sample=False,
            num_beams=options.num_beams,
            max_new_tokens=options.max_new_tokens,
            eos_token_id=list(options.eos),
            pad_token_id=parts.tokenizer.pad_token_id,
        )
        new = generated[:, inputs["input_ids"].shape[1] :].tolist()
        answers += [_until_end(tokens, options.eos) for tokens in new]
    return answers


def _until_end(tokens: list[int], eos: tuple[int, ...]) -> tuple[int, ...]:
    length = next((i + 1 for i, token in enumerate(tokens) if token in eos), len(tokens))
    return tuple(tokens[:length])


def _inputs(parts: Parts, prompts: Sequence[Prompt], open_image: Callable[[str], Image]) -> dict[str, Any]:
    images = [open_image(digest) for prompt in prompts for digest in prompt.images]
    pixels = dict(parts.image_processor(images=images, return_tensors="pt")) if images else {}
    merge = parts.model.config.vision_config.spatial_merge_size**2
    counts = iter((pixels["image_grid_thw"].prod(-1) // merge).tolist() if images else [])
    image_token = parts.model.config.image_token_id
    rows = []
    for prompt in prompts:
        ids = [token for segment in prompt.segments for token in segment.ids]
        rows.append([t for token in ids for t in [token] * (next(counts) if token == image_token else 1)])
    width = max(map(len, rows))
    pad = parts.tokenizer.pad_token_id
    tokens = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
    alive = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    text = {
        "input_ids": tokens,
        "attention_mask": alive,
        "mm_token_type_ids": (tokens == image_token).int() * alive.int(),
    }
    return {name: tensor.to(parts.model.device) for name, tensor in {**text, **pixels}.items()}
