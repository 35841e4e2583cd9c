"""Keys and values of all stored tokens, by slot."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

Slots = np.ndarray[Any, np.dtype[np.int64]]


FIRST_SLOTS = 4096


class SlotPool:
    """Room for the keys and values of tokens; a token's slot says where, in every layer.

    It begins small and doubles up to its limit: a small plan pays for no memory that it does not touch.

    Args:
        config: of the text model.
        limit: the most slots.
        like: a tensor of the device and dtype.

    Attributes:
        keys: [layers, slots, kv heads, width].
        values: the same.
        peak: the most slots ever in use at one time.
    """

    def __init__(self, config: Any, limit: int, *, like: Tensor) -> None:
        width = config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, 0, config.num_key_value_heads, width)
        self.keys = like.new_empty(shape)
        self.values = like.new_empty(shape)
        self.limit = limit
        self.peak = 0
        # A stack: the slots that were given back last are still in the processor's cache.
        self._free: Slots = np.empty(0, dtype=np.int64)
        self._n_free = 0
        self._grow(min(limit, FIRST_SLOTS))

    @property
    def size(self) -> int:
        """Slots that there are by now."""
        return self._free.size

    @property
    def used(self) -> int:
        """Slots in use."""
        return self.size - self._n_free

    def take(self, count: int) -> Slots:
        """Return free slots; the planner's budget is what keeps them from running out.

        Raises:
            MemoryError: fewer are free, which a plan within the budget rules out.
        """
        while count > self._n_free and self.size < self.limit:
            self._grow(min(self.limit, 2 * self.size))
        if count > self._n_free:
            raise MemoryError(f"expected {count} free slots of {self.limit}; found {self._n_free}")
        self._n_free -= count
        self.peak = max(self.peak, self.used)
        return self._free[self._n_free : self._n_free + count][::-1].copy()

    def give(self, slots: Slots) -> None:
        """Take slots back."""
        self._free[self._n_free : self._n_free + slots.size] = slots[::-1]
        self._n_free += slots.size

    def _grow(self, size: int) -> None:
        more = size - self.size
        # One after the other, so that only one of them exists twice at a time.
        self.keys = _longer(self.keys, more)
        self.values = _longer(self.values, more)
        fresh = np.arange(size - 1, self.size - 1, -1, dtype=np.int64)
        free = np.concatenate([fresh, self._free[: self._n_free]])
        self._free = np.concatenate([free, np.empty(size - free.size, dtype=np.int64)])
        self._n_free = free.size

    def store(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write keys and values [n, kv heads, width] to the slots [n]."""
        self.keys[layer].index_copy_(0, slots, keys)
        self.values[layer].index_copy_(0, slots, values)

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values [n, kv heads, width] of slots [n]."""
        return self.keys[layer].index_select(0, slots), self.values[layer].index_select(0, slots)


def _longer(stored: Tensor, more: int) -> Tensor:
    return torch.cat([stored, stored.new_empty(stored.shape[0], more, *stored.shape[2:])], dim=1)
