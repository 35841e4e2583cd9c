"""The vision tower over images of one grid, windows of one length attended in one call.

The stock forward calls attention once a window and layer: 844 times for a 640 x 480 image of Qwen2.5-VL-3B, whose
windows have four lengths at most. Here a batch of such images takes 116 calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb_vision
from transformers.vision_utils import get_vision_position_ids, get_vision_window_index

from lever_pipe.base.rowwise import linear
from lever_pipe.lvlms._positions import Grid


@dataclass(frozen=True)
class _Plan:
    """What one grid needs; patches in the order of the windows.

    Attributes:
        order: merged token of each place, [tokens].
        back: place of each merged token, [tokens].
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
            pixels: patches of all images as the image processor orders them [B x patches, values].
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
    """Return the attention output [B, patches, H]; patches see those of their own window."""
    images, patches, _ = hidden.shape
    projected = attention.qkv(hidden).view(images, patches, 3, attention.num_heads, -1)
    queries, keys, values = projected.unbind(2)
    queries, keys = apply_rotary_pos_emb_vision(queries, keys, *rotary)
    read = torch.empty_like(values)
    for window in windows:
        q, k, v = (_windowed(part, window) for part in (queries, keys, values))
        seen = scaled_dot_product_attention(q, k, v, scale=attention.scaling)
        read[:, window.flatten()] = seen.transpose(1, 2).reshape(images, window.numel(), *read.shape[2:])
    return torch.as_tensor(attention.proj(read.flatten(2)))


def _windowed(heads: Tensor, window: Tensor) -> Tensor:
    """Return [B x windows, heads, length, D] of [B, patches, heads, D]."""
    if window.numel() == heads.shape[1] and len(window) == 1:
        return heads.transpose(1, 2)
    return heads[:, window].flatten(0, 1).transpose(1, 2)


class VisionFlop:
    """Multiply-adds times two of one image in the vision tower, window attention counted by its window."""

    def __init__(self, visual: Any) -> None:
        config = visual.config
        self._merge = config.spatial_merge_size**2
        self._patch = 2 * sum(p.numel() for p in visual.blocks.parameters()) + 2 * sum(
            p.numel() for p in visual.patch_embed.parameters()
        )
        self._merged = 2 * sum(p.numel() for p in visual.merger.parameters())
        self._attention = 4 * config.hidden_size
        self._full = len(config.fullatt_block_indexes)
        self._windowed = config.depth - self._full
        self._window = (config.window_size // config.patch_size) ** 2

    def __call__(self, grid: Grid) -> int:
        patches = grid[0] * grid[1] * grid[2]
        keys = self._full * patches + self._windowed * min(self._window, patches)
        linear = patches * self._patch + patches // self._merge * self._merged
        return int(linear + self._attention * patches * keys)
