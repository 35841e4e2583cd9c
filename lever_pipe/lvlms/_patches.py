"""Images as grids of patches, of which a square is merged into a token, as Qwen2.5-VL sees them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

from lever_pipe.lvlms._loading import differing, faults_of_heads, read_processor, read_tokenizer
from lever_pipe.lvlms._positions import Grid, SegmentLayout, grid_layout

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
END = "<|im_end|>"
# A CPU is fastest while a batch's activations stay in its cache; a GPU needs enough of them to be busy.
PATCHES_PER_BATCH = {"cpu": 2048}
PATCHES_PER_BATCH_ELSEWHERE = 16_384


@dataclass(frozen=True)
class Patches:
    """Images as frames, rows and columns of patches (`_vision.ImageEncoder`).

    Attributes:
        model: whose vision tower.
        processor: its image processor.
        tower: from the pixels of images of one grid, and that grid, to their features, as `encode`.
        work: of one image of a grid in the tower, as `flop`.
    """

    model: Any
    processor: Any
    tower: Callable[[torch.Tensor, Grid], torch.Tensor]
    work: Callable[[Grid], int]

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
        return self.tower(pixels, grid)

    def flop(self, grid: Grid) -> int:
        """Return the work of one image in the tower."""
        return self.work(grid)

    def stock_pixels(self, images: Sequence[Sequence[Image]]) -> dict[str, torch.Tensor]:
        """Return what the model's own forward takes of the images of several prompts."""
        return dict(self.processor(images=[image for shown in images for image in shown], return_tensors="pt"))


def read_patch_tokenizer(folder: Path, config: Any) -> Any:
    """Return the tokenizer of a folder: ChatML, and an image between two tokens.

    Raises:
        CheckpointError: an unreadable tokenizer, or another model's.
    """
    wanted = {
        "<|vision_start|>": config.vision_start_token_id,
        "<|image_pad|>": config.image_token_id,
        "<|vision_end|>": config.vision_end_token_id,
        "<|im_start|>": None,
        END: None,
    }
    return read_tokenizer(folder, wanted, end=END, vocabulary=config.text_config.vocab_size)


def read_patch_processor(folder: Path, vision: Any) -> Any:
    """Return the image processor of a folder.

    Raises:
        CheckpointError: an unreadable file, or another model's image processor.
    """

    def faults(processor: Any) -> Iterator[str]:
        yield from differing(
            {
                "patch_size": (processor.patch_size, vision.patch_size),
                "merge_size": (processor.merge_size, vision.spatial_merge_size),
                "temporal_patch_size": (processor.temporal_patch_size, vision.temporal_patch_size),
            }
        )
        sides = [processor.size.get(name) for name in ("shortest_edge", "longest_edge")]
        if not all(isinstance(side, int) and side > 0 for side in sides) or sides[0] > sides[1]:
            yield f"size {dict(processor.size)}"

    return read_processor(Qwen2VLImageProcessorPil, folder, "patch_size", "merge_size", faults=faults)


def faults_of_axes(text: Any, vision: Any) -> Iterator[str]:
    """Yield what of the heads and of their positions on three axes fits nothing, though no tensor contradicts it."""
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    sections = (text.rope_parameters or {}).get("mrope_section") or ()
    if of_heads := list(faults_of_heads(text)):
        yield from of_heads
    elif 2 * sum(sections) != width:
        yield f"mrope_section {list(sections)} on heads of {width}"
    if vision.hidden_size % vision.num_heads or vision.hidden_size // vision.num_heads % 4:
        yield f"{vision.num_heads} vision heads on {vision.hidden_size}"
