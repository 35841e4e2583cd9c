"""A tiny random Idefics3, to whose tokenizer the names of tiles are text."""

from __future__ import annotations

from pathlib import Path

import tiny_tiles
from transformers import Idefics3Config, Idefics3ForConditionalGeneration
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

KINDS = (Idefics3Config, Idefics3ForConditionalGeneration, Idefics3ImageProcessorPil)
SPECIALS = ("<|pad|>", "<|begin_of_text|>", "<image>", "<end_of_utterance>", "<fake_token_around_image>")


def save(folder: Path) -> None:
    """Write the model, its tokenizer and its image processor."""
    tiny_tiles.save(folder, kinds=KINDS, specials=SPECIALS, side=28, scale=2, longest=56)
