"""Qwen2.5-VL: its template, its vision tower of windows, and its folder read strictly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import Qwen2_5_VLForConditionalGeneration

from lever_pipe.lvlms._family import Family
from lever_pipe.lvlms._layers import LanguageModel
from lever_pipe.lvlms._loading import load_model, read_config
from lever_pipe.lvlms._patches import END, IMAGE, Patches, faults_of_axes, read_patch_processor, read_patch_tokenizer
from lever_pipe.lvlms._tower import VisionFlop, VisionTower
from lever_pipe.lvlms.asking.prompts import ChatTemplate

REQUIRED = ("config.json", "tokenizer.json", "preprocessor_config.json")
TEMPLATE = ChatTemplate(
    begin="<|im_start|>{role}\n",
    end=f"{END}\n",
    image=IMAGE,
    system="You are a helpful assistant.",
)
"""ChatML, as the published model's own chat template writes it."""


def load(folder: Path, *, dtype: str, device: str) -> Family:
    """Return model, tokenizer and image processor of a folder as `save_pretrained` writes it.

    Raises:
        CheckpointError: missing files, another architecture, tensors that differ from it or were never trained, or a
            tokenizer or image processor of another model.
    """
    config = read_config(folder, "qwen2_5_vl", title="a Qwen2.5-VL", files=REQUIRED, faults=_faults)
    tokenizer = read_patch_tokenizer(folder, config)
    processor = read_patch_processor(folder, config.vision_config)
    model = load_model(Qwen2_5_VLForConditionalGeneration, folder, tokenizer, dtype=dtype, device=device)
    return family_of(folder, model, tokenizer, processor)


def family_of(folder: Path, model: Any, tokenizer: Any, processor: Any) -> Family:
    """Return what is loaded, or made in memory, as the engine runs it."""
    visual, image_token = model.model.visual, model.config.image_token_id
    language = LanguageModel(model.model.language_model, model.lm_head, image_token=image_token)
    encoder = Patches(model, processor, VisionTower(visual), VisionFlop(visual))
    return Family(__name__, folder, model, tokenizer, processor, TEMPLATE, language, encoder)


def _faults(config: Any) -> Iterator[str]:
    text, vision = config.text_config, config.vision_config
    yield from faults_of_axes(text, vision)
    if vision.window_size < 1 or vision.window_size % (vision.patch_size * vision.spatial_merge_size):
        yield f"windows of {vision.window_size} pixels for merged patches of {vision.patch_size}"
    if not all(0 <= index < vision.depth for index in vision.fullatt_block_indexes):
        yield f"fullatt_block_indexes {vision.fullatt_block_indexes} of {vision.depth} blocks"
