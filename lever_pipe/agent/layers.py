"""One pass through the layers of a Qwen3, attention left to the caller.

The stock forward pass makes masks, caches and outputs of every place, whoever reads them. Here the states of wanted
places alone go through what follows the last attention; a row's numbers are those of the stock pass.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

Rotary = tuple[Tensor, Tensor]


class Attention(Protocol):
    """What the queries of one layer read."""

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return [B, L, heads * D] for queries [B, L, heads, D], keys and values [B, L, kv heads, D]."""
        ...


def is_plain(model: Any) -> bool:
    """Return whether these layers are the model's: a whole Qwen3, neither in parts nor recomputing activations."""
    from transformers import Qwen3ForCausalLM

    # A model in parts has a class of its own.
    return type(model) is Qwen3ForCausalLM and not model.is_activation_checkpointing


def run_layers(
    model: Any, ids_BL: Tensor, positions_BL: Tensor, attend: Attention, wanted: tuple[Tensor, Tensor]
) -> Tensor:
    """Return the normalised hidden states [n, H] of the wanted places.

    Args:
        model: one that `is_plain`.
        ids_BL: int64 [B, L].
        positions_BL: int64 [B or 1, L], where each token stands in its text.
        attend: the attention of every layer.
        wanted: rows and columns of the places, int64 [n] each, none twice.
    """
    decoder = model.model
    hidden = decoder.embed_tokens(ids_BL)
    cos, sin = decoder.rotary_emb(hidden, positions_BL)
    rotary = cos.unsqueeze(2), sin.unsqueeze(2)
    last = len(decoder.layers) - 1
    for index, layer in enumerate(decoder.layers):
        read = _read(layer.self_attn, layer.input_layernorm(hidden), rotary, index, attend)
        if index == last:
            hidden, read = hidden[wanted], read[wanted]
        hidden = hidden + layer.self_attn.o_proj(read)
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return torch.as_tensor(decoder.norm(hidden))


def _read(module: Any, normed: Tensor, rotary: Rotary, index: int, attend: Attention) -> Tensor:
    shape = (*normed.shape[:-1], -1, module.head_dim)
    queries = _rotate(module.q_norm(module.q_proj(normed).view(shape)), rotary)
    keys = _rotate(module.k_norm(module.k_proj(normed).view(shape)), rotary)
    return attend(index, queries, keys, module.v_proj(normed).view(shape))


def _rotate(heads: Tensor, rotary: Rotary) -> Tensor:
    cos, sin = rotary
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat((-second, first), dim=-1) * sin
