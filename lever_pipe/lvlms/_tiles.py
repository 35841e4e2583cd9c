"""Images cut into square tiles of one size beside the whole image, as Idefics3 and its kin see them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers.models.idefics3.image_processing_pil_idefics3 import get_resize_output_image_size

from lever_pipe.base.errors import CheckpointError
from lever_pipe.base.model_folders import MAKE
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

TEXT = "llama"
STARTS = ("<|begin_of_text|>", "<|im_start|>")
"""Of Llama 3's tokenizer and of SmolLM2's; the one that a tokenizer has stands before everything."""
IMAGE, AROUND, WHOLE, END = "<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"
# A CPU is fastest while a batch's activations stay in its cache; a GPU needs enough of them to be busy.
TILES_PER_BATCH = {"cpu": 4}
TILES_PER_BATCH_ELSEWHERE = 64


def chat_template(start: str) -> ChatTemplate:
    """Return how these models write turns, behind a token that stands before everything."""
    return ChatTemplate(
        begin="{role}:",
        end=END,
        image=IMAGE,
        start=start,
        between="\n",
        before_text=" ",
        roles={"system": "System", "user": "User", "assistant": "Assistant"},
    )


@dataclass(frozen=True)
class Tiles:
    """Images as rows and columns of tiles and a last tile of the whole image (`_vision.ImageEncoder`).

    A grid is the number of rows and of columns; (0, 0) is the whole image alone.

    Attributes:
        model: whose vision tower and connector.
        processor: its image processor.
        tokenizer: of the texts that stand around tiles.
    """

    model: Any
    processor: Any
    tokenizer: Any

    @property
    def rows_per_batch(self) -> int:
        """Return the tiles of one pass of the tower."""
        return TILES_PER_BATCH.get(self.model.device.type, TILES_PER_BATCH_ELSEWHERE)

    def grid(self, width: int, height: int) -> Grid:
        """Return rows and columns of tiles."""
        if not self.processor.do_image_splitting:
            return 0, 0
        side = self.processor.max_image_size["longest_edge"]
        shape = np.empty((0, height, width))  # the processor's function reads nothing but the shape
        height, width = get_resize_output_image_size(shape, self.processor.size["longest_edge"])
        rows, columns = _whole_tiles(height, width, side)
        return (rows, columns) if rows * columns > 1 else (0, 0)

    def block(self, grid: Grid) -> SegmentLayout:
        """Return the tokens of an image: each tile behind its name, the last one followed by a closing token."""
        ids = np.asarray(self.tokenizer(written(grid), add_special_tokens=False).input_ids)
        image = self.model.config.image_token_id
        return line_layout(ids.repeat(np.where(ids == image, tokens_of_tile(self.model.config), 1)).tolist())

    def pixels(self, images: Sequence[Image]) -> list[tuple[Grid, torch.Tensor]]:
        """Return rows and columns and the pixels [tiles, 3, side, side] of each image's tiles."""
        batch = self.processor(images=[list(images)], return_tensors="pt", return_row_col_info=True)
        grids: list[Grid] = list(zip(batch["rows"][0], batch["cols"][0], strict=True))
        return list(zip(grids, batch["pixel_values"][0].split([_tiles(grid) for grid in grids]), strict=True))

    def encode(self, pixels: torch.Tensor, grid: Grid) -> torch.Tensor:
        """Return the features [B, tokens, H]."""
        own = self.model.model
        # Not `get_image_features`: it leaves out tiles whose pixels are all zero, as its own padding is.
        seen = own.vision_model(pixel_values=pixels.to(self.model.dtype)).last_hidden_state
        features = own.connector(seen)
        return torch.as_tensor(features).reshape(-1, _tiles(grid) * features.shape[1], features.shape[2])

    def flop(self, grid: Grid) -> int:
        """Return the work of one image in the tower."""
        return _tiles(grid) * self._flop_of_tile

    def stock_pixels(self, images: Sequence[Sequence[Image]]) -> dict[str, torch.Tensor]:
        """Return what the model's own forward takes of the images of several prompts."""
        return dict(self.processor(images=[list(shown) for shown in images], return_tensors="pt"))

    @cached_property
    def _flop_of_tile(self) -> int:
        config, own = self.model.config, self.model.model
        patches, vision = _side(config.vision_config) ** 2, config.vision_config
        pairs = 2 * patches * vision.hidden_size * vision.num_hidden_layers
        tower = patches * (_weights(own.vision_model) + pairs)
        return int(2 * (tower + tokens_of_tile(config) * _weights(own.connector)))


def written(grid: Grid) -> str:
    """Return an image as the published processor writes it, one placeholder a tile."""
    whole = f"{AROUND}{WHOLE}{IMAGE}{AROUND}"
    if grid == (0, 0):
        return whole
    rows = (
        "".join(f"{AROUND}<row_{row + 1}_col_{column + 1}>{IMAGE}" for column in range(grid[1]))
        for row in range(grid[0])
    )
    return "".join(f"{row}\n" for row in rows) + f"\n{whole}"


def tokens_of_tile(config: Any) -> int:
    """Return how many tokens a tile becomes: its patches, of which a square is merged into one."""
    return (_side(config.vision_config) // int(config.scale_factor)) ** 2


def load_tiled(member: str, folder: Path, *, title: str, model: Any, processor: Any, dtype: str, device: str) -> Family:
    """Return a family of tiles from a folder as `save_pretrained` writes it.

    Args:
        member: the family's module, whose last name is the model type.
        folder: to be read.
        title: what errors call the model, with its article.
        model: its class.
        processor: the class of its image processor.
        dtype: of the weights.
        device: a torch device.

    Raises:
        CheckpointError: missing files, another architecture, tensors that differ from it or were never trained, or a
            tokenizer or image processor of another model.
    """
    files = ("config.json", "tokenizer.json", "preprocessor_config.json")
    config = read_config(folder, member.rpartition(".")[2], title=title, files=files, faults=_faults_of_shapes)
    wanted = {IMAGE: config.image_token_id, AROUND: None, END: None}
    tokenizer = read_tokenizer(folder, wanted, end=END, vocabulary=config.text_config.vocab_size)
    template = chat_template(_start_of(folder, tokenizer))
    faults = partial(_faults_of_tiles, config.vision_config)
    pictures = read_processor(processor, folder, "size", "max_image_size", faults=faults)
    loaded = load_model(model, folder, tokenizer, dtype=dtype, device=device)
    language = LanguageModel(loaded.model.text_model, loaded.lm_head, axes=1, image_token=config.image_token_id)
    encoder = Tiles(loaded, pictures, tokenizer)
    return Family(member, folder, loaded, tokenizer, pictures, template, language, encoder)


def _faults_of_shapes(config: Any) -> Iterator[str]:
    text, vision = config.text_config, config.vision_config
    if text.model_type != TEXT:
        yield f"a text part {text.model_type!r}, not {TEXT!r}"
        return
    yield from faults_of_heads(text)
    if vision.hidden_size % vision.num_attention_heads:
        yield f"{vision.num_attention_heads} vision heads on {vision.hidden_size}"
    if not isinstance(vision.image_size, int) or not isinstance(vision.patch_size, int):
        yield f"tiles of {vision.image_size} and patches of {vision.patch_size} pixels"
    elif config.scale_factor < 1 or _side(vision) < 1 or _side(vision) % config.scale_factor:
        yield f"scale_factor {config.scale_factor} for {_side(vision)} patches a side"


def _start_of(folder: Path, tokenizer: Any) -> str:
    known = tokenizer.get_vocab()
    if not (starts := [text for text in STARTS if text in known]):
        where = f"{folder}: expected a tokenizer with {' or '.join(STARTS)}, before which nothing is written"
        raise CheckpointError(where, found="neither", do=MAKE)
    return starts[0]


def _faults_of_tiles(vision: Any, processor: Any) -> Iterator[str]:
    sides = {"max_image_size": (processor.max_image_size.get("longest_edge"), vision.image_size)}
    yield from differing({**sides, "do_pad": (processor.do_pad, True)})
    longest = processor.size.get("longest_edge")
    if not isinstance(longest, int) or longest < 1:
        yield f"size {dict(processor.size)}"


def _whole_tiles(height: int, width: int, side: int) -> tuple[int, int]:
    """Return rows and columns of the least whole tiles: the longer side grows to them, the other one follows it."""
    ratio = width / height
    if width >= height:
        columns = math.ceil(width / side)
        return math.ceil(int(columns * side / ratio) / side), columns
    rows = math.ceil(height / side)
    return rows, math.ceil(int(rows * side * ratio) / side)


def _tiles(grid: Grid) -> int:
    return grid[0] * grid[1] + 1


def _side(vision: Any) -> int:
    """Return the patches of a tile's side."""
    return int(vision.image_size // vision.patch_size)


def _weights(part: torch.nn.Module) -> int:
    """Return the multiply-adds that each row of a part takes."""
    kinds = (torch.nn.Linear, torch.nn.Conv2d)
    return sum(module.weight.numel() for module in part.modules() if isinstance(module, kinds))
