"""Images of a Qwen2.5-VL: their grids and tokens, the vision tower, and features that are computed once an image.

The stock tower calls attention once a window and layer: 844 times for a 640 x 480 image of Qwen2.5-VL-3B, whose
windows have at most four lengths. Here windows of one length are attended in one call, over all images of one grid: a
batch of such images takes 116 calls.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb_vision
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.vision_utils import get_vision_position_ids, get_vision_window_index

from lever_pipe.base.rowwise import linear
from lever_pipe.lvlms._requests import Grid, Layout, image_layout
from lever_pipe.lvlms.protocol import ImageSource

IMAGES_PER_CALL = 16
PATCHES_PER_BATCH = 2048  # a CPU is fastest while a batch's activations stay in its cache


class VisionStore:
    """Features and grids of images by digest; beyond a number of bytes the least recently used features are dropped.

    Images of one batch have one grid, and batches are formed in the order of the digests, so an image's features do
    not depend on the order of requests.

    Args:
        model: model with the vision tower.
        processor: its image processor.
        images: files of the digests.
        capacity: bytes of features to keep.

    Attributes:
        encoded: passes of one image through the tower so far.
    """

    def __init__(self, model: Any, processor: Any, images: ImageSource, *, capacity: int) -> None:
        self._model = model
        self._processor = processor
        self._images = images
        self._capacity = capacity
        self.encoded = 0
        self._tower = VisionTower(model.model.visual)
        self._grids: dict[str, Grid] = {}
        self._layouts: dict[Grid, Layout] = {}
        self._features: OrderedDict[str, Tensor] = OrderedDict()
        self._bytes = 0

    def prepare(self, digests: Iterable[str]) -> None:
        """Encode all images without stored features, in batches."""
        for digest, features in self._encode(digests):
            self._keep(digest, features)

    def layout(self, digest: str) -> Layout:
        """Return the tokens of an image, by its size."""
        grid = self.grid(digest)
        if grid not in self._layouts:
            token = self._model.config.image_token_id
            self._layouts[grid] = image_layout(grid, self._processor.merge_size, token)
        return self._layouts[grid]

    def grid(self, digest: str) -> Grid:
        """Return frames, rows and columns of patches of an image, by its size."""
        if digest not in self._grids:
            processor = self._processor
            width, height = self._images.size(digest)
            # The processor's rule applied to the size alone, so that planning decodes no image.
            rows, columns = smart_resize(
                height,
                width,
                factor=processor.patch_size * processor.merge_size,
                min_pixels=processor.size["shortest_edge"],
                max_pixels=processor.size["longest_edge"],
            )
            self._grids[digest] = 1, rows // processor.patch_size, columns // processor.patch_size
        return self._grids[digest]

    def features(self, digests: Sequence[str]) -> list[Tensor]:
        """Return the features [n, H] of each image, encoding dropped ones again."""
        missing = dict(self._encode(digests))
        features = []
        for digest in digests:
            if digest not in missing:
                self._features.move_to_end(digest)
            features.append(missing[digest] if digest in missing else self._features[digest])
        # Stored last, so that storing them cannot drop features that this call needs.
        for digest, encoded in missing.items():
            self._keep(digest, encoded)
        return features

    def _keep(self, digest: str, features: Tensor) -> None:
        self._features[digest] = features
        self._bytes += features.nbytes
        # The newest features are kept even if they exceed the capacity alone.
        while self._bytes > self._capacity and len(self._features) > 1:
            _, dropped = self._features.popitem(last=False)
            self._bytes -= dropped.nbytes

    def _encode(self, digests: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield the features of each image that has none."""
        waiting: dict[Grid, list[tuple[str, Tensor]]] = {}
        rows: Counter[Grid] = Counter()
        for digest, grid, pixels in self._pixels(sorted({d for d in digests if d not in self._features})):
            waiting.setdefault(grid, []).append((digest, pixels))
            rows[grid] += len(pixels)
            if rows[grid] >= PATCHES_PER_BATCH:
                del rows[grid]
                yield from self._forward(grid, waiting.pop(grid))
        for grid, group in waiting.items():
            yield from self._forward(grid, group)

    def _pixels(self, digests: Sequence[str]) -> Iterator[tuple[str, Grid, Tensor]]:
        """Yield digest, grid and patches [patches, values]; several images a call, because a call is expensive."""
        for start in range(0, len(digests), IMAGES_PER_CALL):
            part = digests[start : start + IMAGES_PER_CALL]
            batch = self._processor(images=[self._images.open(digest) for digest in part], return_tensors="pt")
            grids = [tuple(grid) for grid in batch["image_grid_thw"].tolist()]
            yield from zip(part, grids, batch["pixel_values"].split([math.prod(grid) for grid in grids]), strict=True)

    @torch.inference_mode()
    def _forward(self, grid: Grid, group: list[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
        pixels = torch.cat([pixels for _, pixels in group]).to(self._model.device)
        encoded = self._tower(pixels, grid).to(self._model.lm_head.weight.dtype)
        self.encoded += len(group)
        # A clone, because a slice would keep the memory of its whole batch.
        features = [part.clone() for part in encoded]
        return [(digest, feature) for (digest, _), feature in zip(group, features, strict=True)]


@dataclass(frozen=True)
class _Plan:
    """Precomputed tensors of one grid; patches in the order of the windows.

    Attributes:
        order: merged token of each position, [tokens].
        back: position of each merged token, [tokens].
        rotary: cosine and sine of each patch [patches, D].
        windows: for each window length the patches of its windows [windows, length].
    """

    order: Tensor
    back: Tensor
    rotary: tuple[Tensor, Tensor]
    windows: tuple[Tensor, ...]


class VisionTower:
    """Encodes images with the weights of a `Qwen2_5_VisionTransformerPretrainedModel`."""

    def __init__(self, visual: Any) -> None:
        self._visual = visual
        self._config = visual.config
        self._plan = lru_cache(maxsize=1024)(self._make_plan)

    def __call__(self, pixels: Tensor, grid: Grid) -> Tensor:
        """Return the features [B, tokens, H] of images with one grid.

        Args:
            pixels: patches of all images in the order of the image processor [B x patches, values].
            grid: frames, rows and columns of patches.
        """
        visual, plan = self._visual, self._plan(grid)
        projection = visual.patch_embed.proj  # its kernel covers a patch, so it is a matrix product
        patches = linear(pixels.to(projection.weight.dtype), projection.weight.flatten(1))
        unit = self._config.spatial_merge_size**2
        merged = patches.view(-1, plan.order.numel(), unit, patches.shape[-1])
        hidden = merged[:, plan.order].flatten(1, 2)
        full = (torch.arange(hidden.shape[1], device=hidden.device)[None],)
        for index, block in enumerate(visual.blocks):
            windows = full if index in self._config.fullatt_block_indexes else plan.windows
            hidden = hidden + _attend(block.attn, block.norm1(hidden), plan.rotary, windows)
            hidden = hidden + block.mlp(block.norm2(hidden))
        features = visual.merger(hidden).view(hidden.shape[0], plan.order.numel(), -1)
        return torch.as_tensor(features[:, plan.back])

    def _make_plan(self, grid: Grid) -> _Plan:
        config, device = self._config, self._visual.patch_embed.proj.weight.device
        grids = torch.tensor([grid])
        order, ends = get_vision_window_index(
            grids, config.spatial_merge_size, window_size=config.window_size, patch_size=config.patch_size
        )
        positions = get_vision_position_ids(grids, config.spatial_merge_size).to(device)
        unit = config.spatial_merge_size**2
        angles = self._visual.rotary_pos_emb(self._visual.patch_embed.proj.weight, positions)
        cos, sin = (part.view(order.numel(), unit, -1)[order].flatten(0, 1) for part in angles)
        return _Plan(order.to(device), order.argsort().to(device), (cos, sin), _by_length(ends.tolist(), device))


def _by_length(ends: Sequence[int], device: torch.device) -> tuple[Tensor, ...]:
    windows: dict[int, list[Tensor]] = {}
    for begin, end in pairwise(ends):
        windows.setdefault(end - begin, []).append(torch.arange(begin, end, device=device))
    return tuple(torch.stack(windows[length]) for length in sorted(windows))


def _attend(attention: Any, hidden: Tensor, rotary: tuple[Tensor, Tensor], windows: Sequence[Tensor]) -> Tensor:
    """Return the attention output [B, patches, H]; patches see the patches of their own window."""
    images, patches, _ = hidden.shape
    projected = attention.qkv(hidden).view(images, patches, 3, attention.num_heads, -1)
    queries, keys, values = projected.unbind(2)
    queries, keys = apply_rotary_pos_emb_vision(queries, keys, *rotary)
    outputs = torch.empty_like(values)
    for window in windows:
        q, k, v = (_windowed(part, window) for part in (queries, keys, values))
        mixed = scaled_dot_product_attention(q, k, v, scale=attention.scaling)
        outputs[:, window.flatten()] = mixed.transpose(1, 2).reshape(images, window.numel(), *outputs.shape[2:])
    return torch.as_tensor(attention.proj(outputs.flatten(2)))


def _windowed(heads: Tensor, window: Tensor) -> Tensor:
    """Return [B x windows, heads, length, D] of [B, patches, heads, D]."""
    if window.numel() == heads.shape[1] and len(window) == 1:
        return heads.transpose(1, 2)
    return heads[:, window].flatten(0, 1).transpose(1, 2)
