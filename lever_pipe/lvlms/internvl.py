"""InternVL3 and 3.5 in the library's own format (`-hf`): template, tiles, and the folder read strictly.

The text part is a Qwen2 or a Qwen3, whose positions run along one axis; an image is cut into tiles of one size beside
a thumbnail, and each tile gives the same number of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import InternVLForConditionalGeneration
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

from lever_pipe.lvlms._family import Family
from lever_pipe.lvlms._layers import LanguageModel
from lever_pipe.lvlms._loading import (
    differing,
    faults_of_heads,
    load_model,
    read_config,
    read_processor,
    read_tokenizer,
)
from lever_pipe.lvlms._positions import Grid, SegmentLayout, line_layout
from lever_pipe.lvlms.asking.prompts import ChatTemplate

if TYPE_CHECKING:
    from PIL.Image import Image

REQUIRED = ("config.json", "tokenizer.json", "preprocessor_config.json")
TEXTS = ("qwen2", "qwen3")
"""Text parts whose layers the engine runs."""
START, CONTEXT, STOP, END = "<img>", "<IMG_CONTEXT>", "</img>", "<|im_end|>"
TEMPLATE = ChatTemplate(begin="<|im_start|>{role}\n", end=f"{END}\n", image=CONTEXT, behind_image="\n")
"""ChatML, as the published models' own chat template writes it."""
TILED = {"crop_to_patches": True}
"""What the published processor asks of its image processor, whatever the folder's settings say."""
TILES_PER_BATCH = {"cpu": 4}
TILES_PER_BATCH_ELSEWHERE = 64


@dataclass(frozen=True)
class SquareTiles:
    """Images as tiles of one size (`_vision.ImageEncoder`); a grid is the number of tiles.

    Attributes:
        model: whose vision tower.
        processor: its image processor.
        around: ids of the tokens before and behind an image.
    """

    model: Any
    processor: Any
    around: tuple[int, int]

    @property
    def rows_per_batch(self) -> int:
        """Return the tiles of one pass of the tower."""
        return TILES_PER_BATCH.get(self.model.device.type, TILES_PER_BATCH_ELSEWHERE)

    def grid(self, width: int, height: int) -> Grid:
        """Return the number of tiles, the thumbnail included."""
        return (int(self.processor.get_number_of_image_patches(height, width, TILED)),)

    def block(self, grid: Grid) -> SegmentLayout:
        """Return the tokens of an image between those that begin and end it."""
        tokens = [self.model.config.image_token_id] * (grid[0] * tokens_of_tile(self.model.config))
        return line_layout([self.around[0], *tokens, self.around[1]])

    def pixels(self, images: Sequence[Image]) -> list[tuple[Grid, torch.Tensor]]:
        """Return the number and the pixels [tiles, 3, height, width] of each image's tiles."""
        batch = self.processor(images=list(images), return_tensors="pt", **TILED)
        counts = [int(count) for count in batch["num_patches"]]
        return [((count,), part) for count, part in zip(counts, batch["pixel_values"].split(counts), strict=True)]

    def encode(self, pixels: torch.Tensor, grid: Grid) -> torch.Tensor:
        """Return the features [B, tokens, H]."""
        found = self.model.model.get_image_features(pixel_values=pixels).pooler_output
        return torch.as_tensor(found).reshape(-1, grid[0] * found.shape[1], found.shape[2])

    def flop(self, grid: Grid) -> int:
        """Return the work of one image in the tower."""
        return grid[0] * self._flop_of_tile

    def stock_pixels(self, images: Sequence[Sequence[Image]]) -> dict[str, torch.Tensor]:
        """Return what the model's own forward takes of the images of several prompts."""
        shown = [image for of_prompt in images for image in of_prompt]
        return {"pixel_values": self.processor(images=shown, return_tensors="pt", **TILED)["pixel_values"]}

    @cached_property
    def _flop_of_tile(self) -> int:
        config, model = self.model.config.vision_config, self.model.model
        tower = model.vision_tower
        patches = sides(config)[0] // config.patch_size[0] * (sides(config)[1] // config.patch_size[1])
        linear = [module.weight.numel() for module in tower.encoder.modules() if isinstance(module, torch.nn.Linear)]
        attention = 2 * (patches + 1) * config.hidden_size * config.num_hidden_layers
        projector = [m.weight.numel() for m in model.multi_modal_projector.modules() if isinstance(m, torch.nn.Linear)]
        embedding = tower.embeddings.patch_embeddings.projection.weight.numel()
        by_patch = patches * embedding + (patches + 1) * (sum(linear) + attention)
        return int(2 * (by_patch + tokens_of_tile(self.model.config) * sum(projector)))


def sides(vision: Any) -> tuple[int, int]:
    """Return height and width of a tile in pixels."""
    height, width = vision.image_size
    return int(height), int(width)


def tokens_of_tile(config: Any) -> int:
    """Return how many tokens a tile becomes: its patches, of which a square is merged into one."""
    vision = config.vision_config
    patches = [side // patch for side, patch in zip(sides(vision), vision.patch_size, strict=True)]
    return int(patches[0] * config.downsample_ratio) * int(patches[1] * config.downsample_ratio)


def load(folder: Path, *, dtype: str, device: str) -> Family:
    """Return model, tokenizer and image processor of a folder as `save_pretrained` writes it.

    Raises:
        CheckpointError: missing files, another architecture, tensors that differ from it or were never trained, or a
            tokenizer or image processor of another model.
    """
    config = read_config(folder, "internvl", title="an InternVL", files=REQUIRED, faults=_faults)
    wanted = {START: None, CONTEXT: config.image_token_id, STOP: None, END: None}
    tokenizer = read_tokenizer(folder, wanted, end=END, vocabulary=config.text_config.vocab_size)
    tile = sides(config.vision_config)
    processor = read_processor(GotOcr2ImageProcessorPil, folder, "size", faults=lambda of: _faults_of_size(of, tile))
    model = load_model(InternVLForConditionalGeneration, folder, tokenizer, dtype=dtype, device=device)
    language = LanguageModel(model.model.language_model, model.lm_head, axes=1, image_token=config.image_token_id)
    around = tokenizer.convert_tokens_to_ids([START, STOP])
    encoder = SquareTiles(model, processor, (around[0], around[1]))
    return Family(__name__, folder, model, tokenizer, processor, TEMPLATE, language, encoder)


def _faults(config: Any) -> Iterator[str]:
    text, vision = config.text_config, config.vision_config
    if text.model_type not in TEXTS:
        yield f"a text part {text.model_type!r}, not {' or '.join(TEXTS)} (lvlm.member: hf takes any)"
        return
    yield from faults_of_heads(text)
    if vision.hidden_size % vision.num_attention_heads:
        yield f"{vision.num_attention_heads} vision heads on {vision.hidden_size}"
    for side, patch in zip(vision.image_size, vision.patch_size, strict=True):
        if side % patch or (side // patch * config.downsample_ratio) % 1:
            yield f"tiles of {side} pixels for patches of {patch} merged by {config.downsample_ratio}"


def _faults_of_size(processor: Any, tile: tuple[int, int]) -> Iterator[str]:
    found = processor.size.get("height"), processor.size.get("width")
    yield from differing({"size": (found, tile)})
