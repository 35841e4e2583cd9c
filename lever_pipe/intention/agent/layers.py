"""One pass through the layers of a Llama, a Qwen2 or a Qwen3, attention left to the caller.

The stock forward pass makes masks, caches and outputs of every place, whoever reads them. Here the states of wanted
places alone go through what follows the last attention; a row's numbers are those of the stock pass.
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
"""Rows and columns, int64 [n] each, no place twice."""
Rotary = tuple[Tensor, Tensor]
"""Cosines and sines, [B or 1, L, 1, D] each."""
Attend = Callable[[int, Tensor, Tensor, Tensor, Positions | None], Tensor]
"""What the queries of one layer read: (its number, queries [B, L, heads, D], keys [B, L, kv heads, D], values likewise,
wanted places) -> what is read at every place [B, L, heads * D], or at the n wanted ones [n, heads * D]."""


def run_layers(model: Any, ids_BL: Tensor, positions_BL: Tensor, attend: Attend, positions: Positions) -> Tensor:
    """Return the normalised hidden states [n, H] of the wanted places.

    Args:
        model: of one of `FAMILIES`.
        ids_BL: int64 [B, L].
        positions_BL: int64 [B or 1, L], where each token stands in its text.
        attend: the attention of every layer.
        positions: those wanted, at least one.
    """
    decoder = model.model
    hidden = decoder.embed_tokens(ids_BL)
    cos, sin = decoder.rotary_emb(hidden, positions_BL)
    rotary = cos.unsqueeze(2), sin.unsqueeze(2)
    last = len(decoder.layers) - 1
    for index, layer in enumerate(decoder.layers):
        selected = positions if index == last else None
        states = _heads(layer.self_attn, layer.input_layernorm(hidden), rotary)
        if selected is not None:
            hidden = hidden[selected]
        hidden = hidden + layer.self_attn.o_proj(attend(index, *states, selected))
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return torch.as_tensor(decoder.norm(hidden))


def causal(_: int, queries: Tensor, keys: Tensor, values: Tensor, positions: Positions | None) -> Tensor:
    """As `Attend` says, for whole texts: a query reads all up to its own place."""
    q, k, v = (states.transpose(1, 2) for states in (queries, keys, values))
    mixed = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2)
    return mixed if positions is None else mixed[positions]


def branching(n_shared: int, n_texts: int) -> Attend:
    """Return the attention of one row that holds what n texts begin with, and behind it what each goes on with.

    The first `n_shared` places are the beginning; the rest are n texts of one width, which read it and themselves.
    """

    def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor, positions: Positions | None) -> Tensor:
        def ends(states: Tensor) -> Tensor:
            return states[0, n_shared:].reshape(n_texts, -1, *states.shape[2:])

        def whole(states: Tensor) -> Tensor:
            rows = torch.cat([states[:, :n_shared].expand(n_texts, -1, -1, -1), ends(states)], dim=1).transpose(1, 2)
            # With `enable_gqa` and a mask a GPU would write out all scores.
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
    """Return queries, keys and values of an attention module; a Qwen3's alone has norms of its own."""
    shape = (*normed.shape[:-1], -1, module.head_dim)
    queries, keys = module.q_proj(normed).view(shape), module.k_proj(normed).view(shape)
    if hasattr(module, "q_norm"):
        queries, keys = module.q_norm(queries), module.k_norm(keys)
    return _rotate(queries, rotary), _rotate(keys, rotary), module.v_proj(normed).view(shape)


def _rotate(heads: Tensor, rotary: Rotary) -> Tensor:
    cos, sin = rotary
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat((-second, first), dim=-1) * sin
