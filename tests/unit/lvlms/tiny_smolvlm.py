"""A tiny random SmolVLM, to whose tokenizer the name of a tile is a token."""

from __future__ import annotations

from pathlib import Path

import tiny_tiles
from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

KINDS = (SmolVLMConfig, SmolVLMForConditionalGeneration, SmolVLMImageProcessorPil)
NAMES = ("<global-img>", *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)))
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<image>", "<end_of_utterance>", "<fake_token_around_image>", *NAMES)


def save(folder: Path) -> None:
    """Write the model, its tokenizer and its image processor."""
    tiny_tiles.save(folder, kinds=KINDS, specials=SPECIALS, side=42, scale=3, longest=126)
