"""One pass through the layers of a language model; the caller supplies the attention.

The linear layers treat every token equally; only the attention depends on which tokens see each other. So one pass
takes the tokens of many prompts as one packed row [n, ...].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lever_pipe.lvlms._requests import AXES

if TYPE_CHECKING:
    from lever_pipe.lvlms._memory import PassAttention


def run_layers(
    decoder: Any, hidden: Tensor, positions: Tensor, attention: PassAttention, token_positions: Tensor | None
) -> Tensor | None:
    """Return the normalised hidden states of the wanted tokens.

    The last layer computes keys and values of all tokens, for later passes, but queries and outputs for the wanted
    tokens only, because no other output is used.

    Args:
        decoder: layers `norm, attention, norm, mlp`, the last norm and the rotary embedding.
        hidden: inputs of the pass's tokens [n, H].
        positions: rotary positions [AXES, n].
        attention: stores keys and values, and reads them.
        token_positions: positions of the wanted tokens [m]; None if no output is used.
    """
    angles = decoder.rotary_emb(hidden, positions.reshape(AXES, 1, -1))
    cos, sin = (part.view(*hidden.shape[:-1], 1, -1) for part in angles)
    # A rotation swaps the halves of a head and negates the first one; the negation is applied to the sine once.
    rotary = cos, torch.cat([-sin[..., : sin.shape[-1] // 2], sin[..., sin.shape[-1] // 2 :]], dim=-1)
    *before, last = decoder.layers
    for index, layer in enumerate(before):
        normed = _store(layer, index, hidden, rotary, attention)
        hidden = _finish(layer, hidden, attention.attend(index, _queries(layer, normed, rotary), for_output=False))
    normed = _store(last, len(before), hidden, rotary, attention)
    # By now all keys and values are stored for later passes.
    if token_positions is None:
        return None
    queries = _queries(last, normed[token_positions], tuple(part[token_positions] for part in rotary))
    hidden = _finish(last, hidden[token_positions], attention.attend(len(before), queries, for_output=True))
    return torch.as_tensor(decoder.norm(hidden))


def _store(layer: Any, index: int, hidden: Tensor, rotary: tuple[Tensor, ...], attention: PassAttention) -> Tensor:
    normed, attn = torch.as_tensor(layer.input_layernorm(hidden)), layer.self_attn
    keys = _heads(attn, attn.k_proj(normed))
    attention.store(index, _rotate(keys, rotary), _heads(attn, attn.v_proj(normed)))
    return normed


def _queries(layer: Any, normed: Tensor, rotary: tuple[Tensor, ...]) -> Tensor:
    attn = layer.self_attn
    return _rotate(_heads(attn, attn.q_proj(normed)), rotary)


def _finish(layer: Any, hidden: Tensor, mixed: Tensor) -> Tensor:
    hidden = layer.self_attn.o_proj(mixed.flatten(-2)).add_(hidden)
    return torch.as_tensor(layer.mlp(layer.post_attention_layernorm(hidden)).add_(hidden))


def _heads(attention: Any, projected: Tensor) -> Tensor:
    return projected.view(*projected.shape[:-1], -1, attention.head_dim)


def _rotate(heads: Tensor, rotary: tuple[Tensor, ...]) -> Tensor:
    cos, sin = rotary
    return (heads * cos).add_(heads.roll(heads.shape[-1] // 2, -1).mul_(sin))
