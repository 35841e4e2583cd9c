"""One pass of the language model over a batch of rows, with explicit positions, mask and key-value buffer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb


class KeyValueBuffer:
    """Preallocated keys and values of all layers [layers, B, heads, columns, width], filled from the left.

    The decoder layers see it as their cache. A masked column still enters the product with weight zero, and zero times
    an uninitialised NaN is NaN, so only columns that were written are ever returned.
    """

    def __init__(self, keys: Tensor, values: Tensor, used: int = 0) -> None:
        self.keys = keys
        self.values = values
        self.used = used

    @classmethod
    def allocate(cls, config: Any, *, rows: int, columns: int, like: Tensor) -> KeyValueBuffer:
        """Return an empty buffer for a text configuration."""
        width = config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, rows, config.num_key_value_heads, columns, width)
        return cls(like.new_empty(shape), like.new_empty(shape))

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store a layer's keys and values behind the used columns and return all of that layer's."""
        end = self.used + keys.shape[2]
        self.keys[layer, :, :, self.used : end] = keys
        self.values[layer, :, :, self.used : end] = values
        if self.used == 0:
            return keys, values
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def rows(self, index: Tensor) -> KeyValueBuffer:
        """Return a buffer with only the rows of `index`."""
        return KeyValueBuffer(self.keys.index_select(1, index), self.values.index_select(1, index), self.used)


class _Given:
    """A cache of one layer that already holds the keys and values of every column."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self._keys = keys
        self._values = values

    def update(self, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return self._keys, self._values


def run_layers(
    text_model: Any,
    embeddings: Tensor,
    positions: Tensor,
    mask: Tensor,
    *,
    buffer: KeyValueBuffer | None,
    tail: int,
) -> Tensor:
    """Return the normalised hidden states [B, tail, H] of the last `tail` columns.

    The last layer computes queries for the tail only: nothing reads its other columns but through their keys and
    values. In a model of few layers that saves a quarter of the work.

    Args:
        text_model: the decoder, `model.model.language_model`.
        embeddings: inputs of the new columns [B, n, H].
        positions: rotary positions [3, B, n].
        mask: which stored and new columns each new column sees, bool [B, 1, n, used + n].
        buffer: keys and values of earlier columns, extended in place; None if nobody will continue the rows.
        tail: columns whose output is wanted, at most n.
    """
    rotary = text_model.rotary_emb(embeddings, positions)
    hidden = embeddings
    for layer in text_model.layers[:-1]:
        hidden = layer(hidden, attention_mask=mask, position_embeddings=rotary, past_key_values=buffer)
    last = text_model.layers[-1]
    cache: Any = buffer
    if tail < hidden.shape[1]:
        cache = _Given(*_keys_and_values(last, hidden, rotary, buffer))
    hidden = last(
        hidden[:, -tail:],
        attention_mask=mask[:, :, -tail:],
        position_embeddings=(rotary[0][:, -tail:], rotary[1][:, -tail:]),
        past_key_values=cache,
    )
    if buffer is not None:
        buffer.used += embeddings.shape[1]
    return torch.as_tensor(text_model.norm(hidden))


def _keys_and_values(
    layer: Any, hidden: Tensor, rotary: tuple[Tensor, Tensor], buffer: KeyValueBuffer | None
) -> tuple[Tensor, Tensor]:
    attention = layer.self_attn
    rows, columns, _ = hidden.shape
    normed = layer.input_layernorm(hidden)
    keys = attention.k_proj(normed).view(rows, columns, -1, attention.head_dim).transpose(1, 2)
    values = attention.v_proj(normed).view(rows, columns, -1, attention.head_dim).transpose(1, 2)
    _, keys = apply_rotary_pos_emb(keys, keys, *rotary)
    return (keys, values) if buffer is None else buffer.update(keys, values, attention.layer_idx)
