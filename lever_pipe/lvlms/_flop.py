"""Counted work, so that a run can be compared with what its device could do."""

from __future__ import annotations

from typing import Any

from lever_pipe.lvlms._positions import Grid


class VisionFlop:
    """Multiply-adds times two of one image in the vision tower, window attention counted by its window."""

    def __init__(self, model: Any) -> None:
        visual, config = model.model.visual, model.config.vision_config
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


class TextFlop:
    """Multiply-adds times two of the language model on real tokens, padding excluded."""

    def __init__(self, model: Any) -> None:
        config = model.config.text_config
        self._token = 2 * sum(p.numel() for p in model.model.language_model.layers.parameters())
        self._pair = 4 * config.hidden_size * config.num_hidden_layers
        self._logits = 2 * model.lm_head.weight.numel()

    def __call__(self, *, tokens: int, past: int, logits: int) -> int:
        """Return the work of feeding `tokens` in a causal chain behind `past` and of `logits` output positions."""
        pairs = tokens * past + tokens * (tokens + 1) // 2
        return int(tokens * self._token + pairs * self._pair + logits * self._logits)
