"""Qwen3-VL: its template, its vision tower with features for the first layers, and its folder read strictly."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3VLForConditionalGeneration

from lever_pipe.lvlms._family import Family
from lever_pipe.lvlms._layers import LanguageModel
from lever_pipe.lvlms._loading import load_model, read_config
from lever_pipe.lvlms._patches import END, IMAGE, Patches, faults_of_axes, read_patch_processor, read_patch_tokenizer
from lever_pipe.lvlms._positions import Grid
from lever_pipe.lvlms.asking.prompts import ChatTemplate

REQUIRED = ("config.json", "tokenizer.json", "preprocessor_config.json")
TEMPLATE = ChatTemplate(begin="<|im_start|>{role}\n", end=f"{END}\n", image=IMAGE)
"""ChatML, as the published model's own chat template writes it: no system turn where none is given."""


@dataclass(frozen=True)
class DeepTower:
    """The model's own vision tower, its deeper features beside the others (source: DeepStack).

    Attributes:
        model: whose tower.
    """

    model: Any

    def features(self, pixels: torch.Tensor, grid: Grid) -> torch.Tensor:
        """Return the features [B, tokens, (1 + layers) H] of images of one grid."""
        images = len(pixels) // math.prod(grid)
        grids = torch.tensor([grid], device=pixels.device).expand(images, -1)
        seen = self.model.model.visual(pixels.to(self.model.dtype), grid_thw=grids)
        joined = torch.cat([seen.pooler_output, *seen.deepstack_features], dim=-1)
        return joined.view(images, -1, joined.shape[-1])

    def flop(self, grid: Grid) -> int:
        """Return the work of one image: multiply-adds times two."""
        config, patches = self.model.config.vision_config, math.prod(grid)
        pairs = 2 * config.hidden_size * config.depth * math.prod(grid[1:])  # a frame's patches see each other
        by_patch, by_token = self._weights
        return int(2 * patches * (by_patch + pairs + by_token / config.spatial_merge_size**2))

    @cached_property
    def _weights(self) -> tuple[int, int]:
        """Return the multiply-adds that each patch takes, and each token that patches are merged into."""
        visual = self.model.model.visual
        mergers = (visual.merger, visual.deepstack_merger_list)
        merged = sum(parameter.numel() for part in mergers for parameter in part.parameters())
        parts = (visual.patch_embed, visual.blocks)
        return sum(parameter.numel() for part in parts for parameter in part.parameters()), merged


def load(folder: Path, *, dtype: str, device: str) -> Family:
    """Return model, tokenizer and image processor of a folder as `save_pretrained` writes it.

    Raises:
        CheckpointError: missing files, another architecture, tensors that differ from it or were never trained, or a
            tokenizer or image processor of another model.
    """
    config = read_config(folder, "qwen3_vl", title="a Qwen3-VL", files=REQUIRED, faults=_faults)
    tokenizer = read_patch_tokenizer(folder, config)
    processor = read_patch_processor(folder, config.vision_config)
    model = load_model(Qwen3VLForConditionalGeneration, folder, tokenizer, dtype=dtype, device=device)
    language = LanguageModel(model.model.language_model, model.lm_head, axes=3, image_token=config.image_token_id)
    tower = DeepTower(model)
    encoder = Patches(model, processor, tower.features, tower.flop)
    return Family(__name__, folder, model, tokenizer, processor, TEMPLATE, language, encoder)


def _faults(config: Any) -> Iterator[str]:
    text, vision = config.text_config, config.vision_config
    yield from faults_of_axes(text, vision)
    if vision.out_hidden_size != text.hidden_size:
        yield f"image features of {vision.out_hidden_size} for tokens of {text.hidden_size}"
    if math.isqrt(vision.num_position_embeddings) ** 2 != vision.num_position_embeddings:
        yield f"num_position_embeddings {vision.num_position_embeddings}, no square"
    # The last layer runs for the tokens that are read only, none of which is an image's.
    layers = list(vision.deepstack_visual_indexes)
    if layers != sorted({i for i in layers if 0 <= i < vision.depth}) or len(layers) >= text.num_hidden_layers:
        yield f"deepstack_visual_indexes {layers} of {vision.depth} blocks, for {text.num_hidden_layers} layers"
