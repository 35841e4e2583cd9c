"""Qwen2.5-VL: its template, its images, and its folder read strictly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize
from transformers.utils import logging as transformers_logging

from lever_pipe.base.errors import CheckpointError
from lever_pipe.base.model_folders import (
    MAKE,
    faults_of_vocabulary,
    load_strictly,
    readable,
    require_keys,
    require_pixel_settings,
    require_size,
    require_whole,
)
from lever_pipe.base.rowwise import rowwise
from lever_pipe.base.storage import strict_json
from lever_pipe.lvlms._family import Family
from lever_pipe.lvlms._layers import LanguageModel
from lever_pipe.lvlms._positions import Grid, SegmentLayout, grid_layout
from lever_pipe.lvlms._tower import VisionFlop, VisionTower
from lever_pipe.lvlms.asking.prompts import ChatTemplate

if TYPE_CHECKING:
    from PIL.Image import Image

ATTENTION = "sdpa"
REQUIRED = ("config.json", "tokenizer.json", "preprocessor_config.json")
TEMPLATE = ChatTemplate(
    begin="<|im_start|>{role}\n",
    end="<|im_end|>\n",
    image="<|vision_start|><|image_pad|><|vision_end|>",
    system="You are a helpful assistant.",
)
"""ChatML, as the published model's own chat template writes it."""
# A CPU is fastest while a batch's activations stay in its cache; a GPU needs enough of them to be busy.
PATCHES_PER_BATCH = {"cpu": 2048}
PATCHES_PER_BATCH_ELSEWHERE = 16_384


@dataclass(frozen=True)
class Patches:
    """Images as grids of patches, of which a square is merged into a token (`_vision.ImageEncoder`).

    Attributes:
        model: whose vision tower.
        processor: its image processor.
    """

    model: Any
    processor: Any

    @property
    def rows_per_batch(self) -> int:
        """Return the patches of one pass of the tower."""
        return PATCHES_PER_BATCH.get(self.model.device.type, PATCHES_PER_BATCH_ELSEWHERE)

    def grid(self, width: int, height: int) -> Grid:
        """Return frames, rows and columns of patches."""
        processor = self.processor
        rows, columns = smart_resize(
            height,
            width,
            factor=processor.patch_size * processor.merge_size,
            min_pixels=processor.size["shortest_edge"],
            max_pixels=processor.size["longest_edge"],
        )
        return 1, rows // processor.patch_size, columns // processor.patch_size

    def block(self, grid: Grid) -> SegmentLayout:
        """Return the tokens of an image."""
        return grid_layout(grid, self.processor.merge_size, self.model.config.image_token_id)

    def pixels(self, images: Sequence[Image]) -> list[tuple[Grid, torch.Tensor]]:
        """Return the grid and the patches [patches, values] of each image."""
        batch = self.processor(images=list(images), return_tensors="pt")
        grids = [tuple(grid) for grid in batch["image_grid_thw"].tolist()]
        return list(zip(grids, batch["pixel_values"].split([math.prod(grid) for grid in grids]), strict=True))

    def encode(self, pixels: torch.Tensor, grid: Grid) -> torch.Tensor:
        """Return the features [B, tokens, H]."""
        return self._tower(pixels, grid)

    def flop(self, grid: Grid) -> int:
        """Return the work of one image in the tower."""
        return self._flop(grid)

    def stock_pixels(self, images: Sequence[Sequence[Image]]) -> dict[str, torch.Tensor]:
        """Return what the model's own forward takes of the images of several prompts."""
        return dict(self.processor(images=[image for shown in images for image in shown], return_tensors="pt"))

    @cached_property
    def _tower(self) -> VisionTower:
        return VisionTower(self.model.model.visual)

    @cached_property
    def _flop(self) -> VisionFlop:
        return VisionFlop(self.model.model.visual)


def load(folder: Path, *, dtype: str, device: str) -> Family:
    """Return model, tokenizer and image processor of a folder as `save_pretrained` writes it.

    Raises:
        CheckpointError: missing files, another architecture, tensors that differ from it or were never trained, or a
            tokenizer or image processor of another model.
    """
    require_whole(folder, "a Qwen2.5-VL model folder", files=REQUIRED)
    transformers_logging.disable_progress_bar()
    with readable(folder, "config.json"):
        _require_own_settings(folder, strict_json((folder / "config.json").read_bytes()).get("model_type"))
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        require_size(folder, config)
        _require_shapes_fit(folder, config)
    with readable(folder, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        _require_fitting_tokens(folder, tokenizer, config)
    # The PIL processor by name: the automatic one needs torchvision, and the two resize slightly differently.
    with readable(folder, "image processor"):
        require_keys(folder / "preprocessor_config.json", "image_mean", "image_std", "patch_size", "merge_size")
        processor = Qwen2VLImageProcessorPil.from_pretrained(folder, local_files_only=True)
        _require_fitting_patches(folder, processor, config.vision_config)
    model = _load_model(folder, dtype).to(device)
    model.eval().requires_grad_(False)
    # The folder's own sampling defaults must not leak into anybody's `generate`.
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    language = LanguageModel(model.model.language_model, model.lm_head, axes=3, image_token=config.image_token_id)
    encoder = Patches(model, processor)
    return Family(__name__, folder, rowwise(model), tokenizer, processor, TEMPLATE, language, encoder)


def _require_own_settings(folder: Path, kind: object) -> None:
    if kind != "qwen2_5_vl":
        raise CheckpointError(
            f"{folder}/config.json: expected model_type qwen2_5_vl",
            found=repr(kind),
            do="Name the member of lvlms that fits this folder.",
        )


def _require_fitting_tokens(folder: Path, tokenizer: Any, config: Any) -> None:
    """Refuse another model's tokenizer, whose ids would be read as other words."""
    known = tokenizer.get_vocab()
    wanted = {
        "<|vision_start|>": config.vision_start_token_id,
        "<|image_pad|>": config.image_token_id,
        "<|vision_end|>": config.vision_end_token_id,
        "<|im_start|>": known.get("<|im_start|>", "a token"),
        "<|im_end|>": tokenizer.eos_token_id,
    }
    found = {token: tokenizer(token, add_special_tokens=False).input_ids for token in wanted}
    faults = [f"{token} is {found[token]} for {number}" for token, number in wanted.items() if found[token] != [number]]
    if tokenizer.pad_token_id is None:
        faults.append("no pad_token")
    faults += faults_of_vocabulary(known, config.text_config.vocab_size)
    if faults:
        where = f"{folder}: expected the tokenizer of the model that config.json describes, turns ending in <|im_end|>"
        raise CheckpointError(where, found="; ".join(faults), do=MAKE)


def _require_fitting_patches(folder: Path, processor: Any, vision: Any) -> None:
    """Refuse another model's image processor."""
    require_pixel_settings(folder, processor)
    pairs = {
        "patch_size": (processor.patch_size, vision.patch_size),
        "merge_size": (processor.merge_size, vision.spatial_merge_size),
        "temporal_patch_size": (processor.temporal_patch_size, vision.temporal_patch_size),
    }
    faults = [f"{name} {found} for {wanted}" for name, (found, wanted) in pairs.items() if found != wanted]
    sides = [processor.size.get(name) for name in ("shortest_edge", "longest_edge")]
    if not all(isinstance(side, int) and side > 0 for side in sides) or sides[0] > sides[1]:
        faults.append(f"size {dict(processor.size)}")
    if faults:
        where = f"{folder}/preprocessor_config.json: expected the image processor of the model in config.json"
        raise CheckpointError(where, found="; ".join(faults), do=MAKE)


def _require_shapes_fit(folder: Path, config: Any) -> None:
    """Refuse numbers that no shape of a tensor contradicts and that fit nothing."""
    text, vision = config.text_config, config.vision_config
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    sections = (text.rope_parameters or {}).get("mrope_section") or ()
    faults = []
    if text.hidden_size % text.num_attention_heads or text.num_attention_heads % text.num_key_value_heads:
        faults.append(f"{text.num_attention_heads} heads, {text.num_key_value_heads} of keys, on {text.hidden_size}")
    elif 2 * sum(sections) != width:
        faults.append(f"mrope_section {list(sections)} on heads of {width}")
    if vision.hidden_size % vision.num_heads or vision.hidden_size // vision.num_heads % 4:
        faults.append(f"{vision.num_heads} vision heads on {vision.hidden_size}")
    if not (text.rope_parameters or {}).get("rope_theta", 1) > 0:
        faults.append(f"rope_theta {text.rope_parameters['rope_theta']}")
    if vision.window_size < 1 or vision.window_size % (vision.patch_size * vision.spatial_merge_size):
        faults.append(f"windows of {vision.window_size} pixels for merged patches of {vision.patch_size}")
    if not all(0 <= index < vision.depth for index in vision.fullatt_block_indexes):
        faults.append(f"fullatt_block_indexes {vision.fullatt_block_indexes} of {vision.depth} blocks")
    if faults:
        where = f"{folder}/config.json: expected heads, positions and windows that fit each other"
        raise CheckpointError(where, found="; ".join(faults), do=MAKE)


def _load_model(folder: Path, dtype: str) -> Any:
    model = load_strictly(
        Qwen2_5_VLForConditionalGeneration,
        folder,
        "set of weights for its own config.json",
        dtype=getattr(torch, dtype),
        attn_implementation=ATTENTION,
    )
    if set(model.config.text_config.layer_types) != {"full_attention"}:
        raise CheckpointError(
            f"{folder}: expected full attention in every layer",
            found="sliding-window layers",
            do="Set use_sliding_window to false in config.json, as the published models do.",
        )
    return model
