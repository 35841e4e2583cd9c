"""One pass through the language model's layers, attention left to the caller.

The linear layers see every token alike; which tokens see each other is known to the attention only. So one pass serves
a padded batch [B, n, ...] and a packed row [n, ...] of the tokens of many prompts.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import rotate_half

Index = tuple[Tensor, ...]


class PassAttention(Protocol):
    """Attention over stored keys and values, laid out for one pass."""

    def store(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Keep the keys and values [..., kv heads, D] of the pass's tokens."""
        ...

    def attend(self, layer: int, queries: Tensor, *, wanted: bool) -> Tensor:
        """Return what the queries [..., heads, D] read, of all tokens of the pass or of the wanted ones."""
        ...


def run_layers(
    text_model: Any, embeddings: Tensor, positions: Tensor, attention: PassAttention, wanted: Index | None
) -> Tensor | None:
    """Return the normalised hidden states of the wanted tokens.

    The last layer computes keys and values of all tokens, for those who come after, but queries and what follows from
    them for the wanted tokens only: nobody reads the others.

    Args:
        text_model: the decoder, `model.model.language_model`.
        embeddings: inputs of the pass's tokens [..., H].
        positions: rotary positions [3, ...].
        attention: stores keys and values, and reads them.
        wanted: an index into the leading dimensions of `embeddings`; None if nobody reads an output.
    """
    angles = text_model.rotary_emb(embeddings, positions.reshape(3, 1, -1))
    rotary = tuple(part.view(*embeddings.shape[:-1], 1, -1) for part in angles)
    hidden = embeddings
    *before, last = text_model.layers
    for index, layer in enumerate(before):
        normed = _store(layer, index, hidden, rotary, attention)
        hidden = _finish(layer, hidden, attention.attend(index, _queries(layer, normed, rotary), wanted=False))
    normed = _store(last, len(before), hidden, rotary, attention)
    if wanted is None:
        return None
    queries = _queries(last, normed[wanted], tuple(part[wanted] for part in rotary))
    hidden = _finish(last, hidden[wanted], attention.attend(len(before), queries, wanted=True))
    return torch.as_tensor(text_model.norm(hidden))


def _store(layer: Any, index: int, hidden: Tensor, rotary: tuple[Tensor, ...], attention: PassAttention) -> Tensor:
    normed = torch.as_tensor(layer.input_layernorm(hidden))
    keys = _heads(layer, layer.self_attn.k_proj(normed))
    attention.store(index, _rotate(keys, rotary), _heads(layer, layer.self_attn.v_proj(normed)))
    return normed


def _queries(layer: Any, normed: Tensor, rotary: tuple[Tensor, ...]) -> Tensor:
    return _rotate(_heads(layer, layer.self_attn.q_proj(normed)), rotary)


def _finish(layer: Any, hidden: Tensor, read: Tensor) -> Tensor:
    hidden = hidden + layer.self_attn.o_proj(read.flatten(-2))
    return torch.as_tensor(hidden + layer.mlp(layer.post_attention_layernorm(hidden)))


def _heads(layer: Any, projected: Tensor) -> Tensor:
    return projected.view(*projected.shape[:-1], -1, layer.self_attn.head_dim)


def _rotate(heads: Tensor, rotary: tuple[Tensor, ...]) -> Tensor:
    cos, sin = rotary
    return torch.as_tensor(heads * cos + rotate_half(heads) * sin)
