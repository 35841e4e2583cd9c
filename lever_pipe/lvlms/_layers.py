"""The language model of an LVLM as the executors run it, and one pass through its layers, attention left to the caller.

The linear layers see every token alike; which tokens see each other is known to the attention only. So one pass serves
a padded batch [B, n, ...] and a packed row [n, ...] of the tokens of many prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

Index = tuple[Tensor, ...]


@dataclass(frozen=True)
class LanguageModel:
    """A decoder of layers `norm, attention, norm, mlp`, with or without norms of queries and keys.

    Attributes:
        decoder: embeds tokens; holds the layers, the last norm and the rotary embedding.
        head: from hidden states to logits.
        axes: rotary positions of a token: 3 (temporal, row, column) or 1.
        image_token: the placeholder whose embedding an image's features take the place of.
    """

    decoder: Any
    head: Any
    axes: int
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

    def log_probs(self, hidden: Tensor) -> Tensor:
        """Return natural log-probabilities [..., V] in single precision."""
        return torch.log_softmax(self.logits(hidden), dim=-1)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [..., V] in single precision."""
        return torch.as_tensor(self.head(hidden)).float()

    def embed(self, ids: Tensor, features: Sequence[Tensor] = (), shown: Tensor | None = None) -> Embedded:
        """Return the inputs of a pass.

        Args:
            ids: [...].
            features: of the images in their order, [tokens, H] each, or [tokens, (1 + n) H]: the further widths are
                added behind the first n layers (source: DeepStack).
            shown: where image tokens may stand, bool [...]; everywhere if None.
        """
        embeddings: Tensor = self.decoder.embed_tokens(ids)
        if not features:
            return Embedded(embeddings)
        places = ids == self.image_token
        if shown is not None:
            places &= shown
        own, *deeper = torch.split(torch.cat(list(features)), embeddings.shape[-1], dim=-1)
        embeddings[places] = own
        return Embedded(embeddings, places, tuple(deeper))


@dataclass(frozen=True)
class Embedded:
    """The inputs of a pass.

    Attributes:
        tokens: [..., H].
        places: which tokens are of images, bool [...]; None without images.
        deeper: what is added to these tokens behind the first layers, [image tokens, H] each.
    """

    tokens: Tensor
    places: Tensor | None = None
    deeper: tuple[Tensor, ...] = ()

    def added(self, hidden: Tensor, layer: int) -> Tensor:
        """Return the hidden states behind a layer."""
        if layer < len(self.deeper):
            hidden = hidden.clone()
            hidden[self.places] += self.deeper[layer]
        return hidden


class PassAttention(Protocol):
    """Attention over stored keys and values, laid out for one pass."""

    def store(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Keep the keys and values [..., kv heads, D] of the pass's tokens."""
        ...

    def attend(self, layer: int, queries: Tensor, *, wanted: bool) -> Tensor:
        """Return what the queries [..., heads, D] read, of all tokens of the pass or of the wanted ones."""
        ...


def run_layers(
    language: LanguageModel, inputs: Embedded, positions: Tensor, attention: PassAttention, wanted: Index | None
) -> Tensor | None:
    """Return the normalised hidden states of the wanted tokens.

    The last layer computes keys and values of all tokens, for those who come after, but queries and what follows from
    them for the wanted tokens only: nobody reads the others.

    Args:
        language: whose layers.
        inputs: of the pass's tokens [..., H].
        positions: rotary positions [axes, ...].
        attention: stores keys and values, and reads them.
        wanted: an index into the leading dimensions of the inputs; None if nobody reads an output.
    """
    decoder, hidden = language.decoder, inputs.tokens
    axes = (language.axes, 1, -1) if language.axes > 1 else (1, -1)
    angles = decoder.rotary_emb(hidden, positions.reshape(axes))
    cos, sin = (part.view(*hidden.shape[:-1], 1, -1) for part in angles)
    # A rotation takes the other half of a head with the sign of its first half turned: so it is in the sine, once.
    rotary = cos, torch.cat([-sin[..., : sin.shape[-1] // 2], sin[..., sin.shape[-1] // 2 :]], dim=-1)
    *before, last = decoder.layers
    for index, layer in enumerate(before):
        normed = _store(layer, index, hidden, rotary, attention)
        hidden = _finish(layer, hidden, attention.attend(index, _queries(layer, normed, rotary), wanted=False))
        hidden = inputs.added(hidden, index)
    normed = _store(last, len(before), hidden, rotary, attention)
    if wanted is None:
        return None
    queries = _queries(last, normed[wanted], tuple(part[wanted] for part in rotary))
    hidden = _finish(last, hidden[wanted], attention.attend(len(before), queries, wanted=True))
    return torch.as_tensor(decoder.norm(hidden))


def _store(layer: Any, index: int, hidden: Tensor, rotary: tuple[Tensor, ...], attention: PassAttention) -> Tensor:
    normed, own = torch.as_tensor(layer.input_layernorm(hidden)), layer.self_attn
    keys = _normed(own, "k_norm", _heads(own, own.k_proj(normed)))
    attention.store(index, _rotate(keys, rotary), _heads(own, own.v_proj(normed)))
    return normed


def _queries(layer: Any, normed: Tensor, rotary: tuple[Tensor, ...]) -> Tensor:
    own = layer.self_attn
    return _rotate(_normed(own, "q_norm", _heads(own, own.q_proj(normed))), rotary)


def _normed(attention: Any, name: str, heads: Tensor) -> Tensor:
    """Return heads through the norm that some families have before the rotation."""
    norm = getattr(attention, name, None)
    return heads if norm is None else torch.as_tensor(norm(heads))


def _finish(layer: Any, hidden: Tensor, read: Tensor) -> Tensor:
    hidden = layer.self_attn.o_proj(read.flatten(-2)).add_(hidden)
    return torch.as_tensor(layer.mlp(layer.post_attention_layernorm(hidden)).add_(hidden))


def _heads(attention: Any, projected: Tensor) -> Tensor:
    return projected.view(*projected.shape[:-1], -1, attention.head_dim)


def _rotate(heads: Tensor, rotary: tuple[Tensor, ...]) -> Tensor:
    cos, sin = rotary
    return (heads * cos).add_(heads.roll(heads.shape[-1] // 2, -1).mul_(sin))
