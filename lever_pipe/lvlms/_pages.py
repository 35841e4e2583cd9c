"""Pages of keys and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lever_pipe.lvlms._layers import LanguageModel

Indices = np.ndarray[Any, np.dtype[np.int64]]
STORED, SCRATCH = 1, 0  # what the number of a frame grows by from layer to layer


class PagePool:
    """Pages of keys and values.

    A stored page has a frame in every layer. All frames are in one tensor and those of a page follow each other, so
    a table for one layer becomes that of the next by adding one, and numbers stay when the pool grows. What nobody
    reads after the layer that wrote it needs one frame for all layers: a page makes as many of these scratch frames
    as there are layers. With pages of 256 tokens this is what keeps given answers and beams, which fill a few
    tokens of each of their pages, from taking several times the memory of the prompts.

    The planner's budget counts tokens, but the first and the last page of a node are partly filled, and no useful
    number of pages follows from the budget: a node of one token takes a page. So the pool begins with the pages that
    the budget's tokens would fill, grows by a quarter when it runs out, and records its peak. Keys grow before values,
    so that only one of them exists twice at a time.

    Attributes:
        keys: [frames, tokens of a page, kv heads, width].
        values: the same.
        page: tokens of a page.
        layers: frames of a stored page.
        peak: the most pages ever in use at one time.
    """

    def __init__(self, language: LanguageModel, n_pages: int, page: int) -> None:
        config = language.config
        self.page = page
        self.layers: int = config.num_hidden_layers
        # Zeros, because a kernel may read a page behind its sequence's end with weight zero, and zero times NaN is NaN.
        self.keys = torch.zeros(
            *(n_pages * self.layers, page, config.num_key_value_heads, language.head_width),
            dtype=language.dtype,
            device=language.device,
        )
        self.values = torch.zeros_like(self.keys)
        self.peak = 0
        self._free = list(range(n_pages - 1, -1, -1))
        self._size = n_pages

    @property
    def size(self) -> int:
        """Pages in all."""
        return self._size

    @property
    def used(self) -> int:
        """Pages in use."""
        return self._size - len(self._free)

    def take(self, count: int) -> Indices:
        """Return free pages."""
        if count > len(self._free):
            self._grow(count - len(self._free))
        taken = [self._free.pop() for _ in range(count)]
        self.peak = max(self.peak, self.used)
        return np.array(taken, dtype=np.int64)

    def give(self, pages: Indices) -> None:
        """Take pages back."""
        self._free.extend(pages[::-1].tolist())

    def write(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write keys and values [n, kv heads, width] to the slots [n]; a slot is frame times page plus offset."""
        self.keys.flatten(0, 1).index_copy_(0, slots, keys)
        self.values.flatten(0, 1).index_copy_(0, slots, values)

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy tokens from slots [n] to slots [n]."""
        keys, values = self.keys.flatten(0, 1), self.values.flatten(0, 1)
        self.write(targets, keys.index_select(0, sources), values.index_select(0, sources))

    def copy(self, sources: Tensor, targets: Tensor) -> None:
        """Copy whole frames [n] to frames [n]."""
        for stored in (self.keys, self.values):
            stored.index_copy_(0, targets, stored.index_select(0, sources))

    def _grow(self, missing: int) -> None:
        more = max(missing, self._size // 4)
        self.keys = self._longer(self.keys, more)
        self.values = self._longer(self.values, more)
        self._free = [*range(self._size + more - 1, self._size - 1, -1), *self._free]
        self._size += more

    def _longer(self, stored: Tensor, more: int) -> Tensor:
        grown = stored.new_zeros(len(stored) + more * self.layers, *stored.shape[1:])
        grown[: len(stored)] = stored
        return grown
