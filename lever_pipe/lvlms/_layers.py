"""The language model of an LVLM as the executor runs it, and one pass through its layers, attention left to the caller.

The linear layers see every token alike; which tokens see each other is known to the attention only. So one pass takes
the tokens of many prompts as one packed row [n, ...].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from lever_pipe.lvlms._positions import AXES


@dataclass(frozen=True)
class LanguageModel:
    """A decoder of layers `norm, attention, norm, mlp`.

    Attributes:
        decoder: embeds tokens; holds the layers, the last norm and the rotary embedding.
        head: from hidden states to logits.
        image_token: the placeholder whose embedding an image's features take the place of.
    """

    decoder: Any
    head: Any
    image_token: int

    @property
    def config(self) -> Any:
        """Return the decoder's configuration."""
        return self.decoder.config

    @property
    def device(self) -> torch.device:
        """Return where it computes."""
        return torch.device(self.decoder.device)

    @property
    def dtype(self) -> torch.dtype:
        """Return what its weights are."""
        return torch.as_tensor(self.head.weight).dtype

    @property
    def head_width(self) -> int:
        """Return the width D of a head."""
        return int(self.decoder.layers[0].self_attn.head_dim)

    @property
    def vocabulary(self) -> int:
        """Return how many tokens it knows."""
        return int(self.head.weight.shape[0])

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [..., V] in single precision."""
        return torch.as_tensor(self.head(hidden)).float()

    def embed(self, ids: Tensor, features: Sequence[Tensor] = ()) -> Tensor:
        """Return the inputs [..., H] of a pass.

        Args:
            ids: [...].
            features: of the images in their order, [tokens, H] each.
        """
        embeddings: Tensor = self.decoder.embed_tokens(ids)
        if not features:
            return embeddings
        embeddings[ids == self.image_token] = torch.cat(list(features))
        return embeddings


class PassAttention(Protocol):
    """Attention over stored keys and values, laid out for one pass."""

    def store(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Keep the keys and values [..., kv heads, D] of the pass's tokens."""
        ...

    def attend(self, layer: int, queries: Tensor, *, wanted: bool) -> Tensor:
        """Return what the queries [..., heads, D] read, of all tokens of the pass or of the wanted ones."""
        ...


def run_layers(
    language: LanguageModel, hidden: Tensor, positions: Tensor, attention: PassAttention, wanted: Tensor | None
) -> Tensor | None:
    """Return the normalised hidden states of the wanted tokens.

    The last layer computes keys and values of all tokens, for those who come after, but queries and what follows from
    them for the wanted tokens only: nobody reads the others.

    Args:
        language: whose layers.
        hidden: inputs of the pass's tokens [..., H].
        positions: rotary positions [AXES, ...].
        attention: stores keys and values, and reads them.
        wanted: which of the tokens [m]; None if nobody reads an output.
    """
    decoder = language.decoder
    angles = decoder.rotary_emb(hidden, positions.reshape(AXES, 1, -1))
    cos, sin = (part.view(*hidden.shape[:-1], 1, -1) for part in angles)
    # A rotation takes the other half of a head with the sign of its first half turned: so it is in the sine, once.
    rotary = cos, torch.cat([-sin[..., : sin.shape[-1] // 2], sin[..., sin.shape[-1] // 2 :]], dim=-1)
    *before, last = decoder.layers
    for index, layer in enumerate(before):
        normed = _store(layer, index, hidden, rotary, attention)
        hidden = _finish(layer, hidden, attention.attend(index, _queries(layer, normed, rotary), wanted=False))
    normed = _store(last, len(before), hidden, rotary, attention)
    if wanted is None:
        return None
    queries = _queries(last, normed[wanted], tuple(part[wanted] for part in rotary))
    hidden = _finish(last, hidden[wanted], attention.attend(len(before), queries, wanted=True))
    return torch.as_tensor(decoder.norm(hidden))


def _store(layer: Any, index: int, hidden: Tensor, rotary: tuple[Tensor, ...], attention: PassAttention) -> Tensor:
    normed, own = torch.as_tensor(layer.input_layernorm(hidden)), layer.self_attn
    keys = _heads(own, own.k_proj(normed))
    attention.store(index, _rotate(keys, rotary), _heads(own, own.v_proj(normed)))
    return normed


def _queries(layer: Any, normed: Tensor, rotary: tuple[Tensor, ...]) -> Tensor:
    own = layer.self_attn
    return _rotate(_heads(own, own.q_proj(normed)), rotary)


def _finish(layer: Any, hidden: Tensor, read: Tensor) -> Tensor:
    hidden = layer.self_attn.o_proj(read.flatten(-2)).add_(hidden)
    return torch.as_tensor(layer.mlp(layer.post_attention_layernorm(hidden)).add_(hidden))


def _heads(attention: Any, projected: Tensor) -> Tensor:
    return projected.view(*projected.shape[:-1], -1, attention.head_dim)


def _rotate(heads: Tensor, rotary: tuple[Tensor, ...]) -> Tensor:
    cos, sin = rotary
    return (heads * cos).add_(heads.roll(heads.shape[-1] // 2, -1).mul_(sin))
