"""A forward pass through the layers of a Llama, Qwen2 or Qwen3 model, with attention supplied by the caller.

The forward pass of transformers computes masks, caches and outputs for every position, even unused ones. This pass
computes the steps after the last attention only for selected positions; the values equal those of transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

FAMILIES = ("llama", "qwen2", "qwen3")
"""Values of `model_type` in a model's configuration."""
Positions = tuple[Tensor, Tensor]
"""Rows and columns, int64 [n] each, without duplicates."""
Rotary = tuple[Tensor, Tensor]
"""Cosines and sines, [B or 1, L, 1, D] each."""
Attend = Callable[[int, Tensor, Tensor, Tensor, Positions | None], Tensor]
"""Attention of one layer: (layer index, queries [B, L, heads, D], keys [B, L, kv heads, D], values of the same shape,
selected positions or None) -> output at every position [B, L, heads * D], or at the n selected ones [n, heads * D]."""


def run_layers(model: Any, ids_BL: Tensor, positions_BL: Tensor, attend: Attend, positions: Positions) -> Tensor:
    """Return the normalized hidden states [n, H] of the selected positions.

    Args:
        model: causal language model of one of `FAMILIES`.
        ids_BL: int64 [B, L].
        positions_BL: int64 [B or 1, L], the position of each token in its text.
        attend: the attention of every layer.
        positions: the selected positions, at least one.
    """
    decoder = model.model
    hidden = decoder.embed_tokens(ids_BL)
    cos, sin = decoder.rotary_emb(hidden, positions_BL)
    rotary = cos.unsqueeze(2), sin.unsqueeze(2)  # the same for all heads
    last = len(decoder.layers) - 1
    for index, layer in enumerate(decoder.layers):
        selected = positions if index == last else None
        states = _heads(layer.self_attn, layer.input_layernorm(hidden), rotary)
        if selected is not None:
            hidden = hidden[selected]  # after the last attention no position depends on another
        hidden = hidden + layer.self_attn.o_proj(attend(index, *states, selected))
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return torch.as_tensor(decoder.norm(hidden))


def causal(_: int, queries: Tensor, keys: Tensor, values: Tensor, positions: Positions | None) -> Tensor:
    """Return causal attention over whole texts, with the interface of `Attend`."""
    q, k, v = (states.transpose(1, 2) for states in (queries, keys, values))
    mixed = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2)
    return mixed if positions is None else mixed[positions]


def branching(n_shared: int, n_texts: int) -> Attend:
    """Return the attention for one row that contains the shared prefix of n texts, followed by their continuations.

    The first `n_shared` positions are the prefix; the rest are n continuations of equal width. Each continuation
    attends to the prefix and to itself, but not to the other continuations.
    """

    def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor, positions: Positions | None) -> Tensor:
        def ends(states: Tensor) -> Tensor:
            return states[0, n_shared:].reshape(n_texts, -1, *states.shape[2:])

        def whole(states: Tensor) -> Tensor:
            rows = torch.cat([states[:, :n_shared].expand(n_texts, -1, -1, -1), ends(states)], dim=1).transpose(1, 2)
            # Repeat the heads: with `enable_gqa` and a mask, a GPU would materialize the whole matrix of scores.
            return rows.repeat_interleave(queries.shape[2] // states.shape[2], dim=1)

        q = ends(queries).transpose(1, 2)
        width = q.shape[2]
        mask = torch.ones(width, n_shared + width, dtype=torch.bool, device=q.device).tril(n_shared)
        mixed = scaled_dot_product_attention(q, whole(keys), whole(values), attn_mask=mask)
        start = causal(layer, queries[:, :n_shared], keys[:, :n_shared], values[:, :n_shared], None)
        outputs = torch.cat([start, mixed.transpose(1, 2).flatten(2).flatten(0, 1)[None]], dim=1)
        return outputs if positions is None else outputs[positions]

    return attend


def _heads(module: Any, normed: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values of an attention module; only Qwen3 normalizes queries and keys."""
    shape = (*normed.shape[:-1], -1, module.head_dim)
    queries, keys = module.q_proj(normed).view(shape), module.k_proj(normed).view(shape)
    if hasattr(module, "q_norm"):
        queries, keys = module.q_norm(queries), module.k_norm(keys)
    return _rotate(queries, rotary), _rotate(keys, rotary), module.v_proj(normed).view(shape)


def _rotate(heads: Tensor, rotary: Rotary) -> Tensor:
    cos, sin = rotary
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat((-second, first), dim=-1) * sin
