"""A fast forward pass of the tiny LVLM, for training and for the evaluation of thousands of prompts.

It uses the modules of transformers, so the trained weights load into its classes unchanged. Restrictions of this
project's prompts save time: all images have the same size and are encoded in one batch, rotary tables are computed
once, and the last layer computes only selected positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb_vision
from transformers.vision_utils import get_vision_position_ids

from lever_pipe.world.scenes import SIZE
from tools.make_world import vocabulary
from tools.make_world.architectures import PATCH, Reader
from tools.make_world.probes import Probe

GRID = SIZE // PATCH  # patches along one side
IMAGE_TOKENS = (GRID // 2) ** 2
BOUND_KEY_LAYER = 1  # index of the layer whose output is the input of the training heads

_HEADER = (
    vocabulary.IM_START_ID,
    vocabulary.VOCABULARY["user"],
    vocabulary.VISION_START_ID,
    *(vocabulary.IMAGE_ID,) * IMAGE_TOKENS,
    vocabulary.VISION_END_ID,
)
_ASK = (vocabulary.IM_END_ID, vocabulary.IM_START_ID, vocabulary.VOCABULARY["assistant"])
_FIRST_IMAGE_SLOT = 3

WORDS_BY_ID = {i: word for word, i in vocabulary.VOCABULARY.items()}

Turn = tuple[str, str | None]
"""Question and answer; the answer is None only in the last turn of a prompt."""


@dataclass(frozen=True)
class PackedTurns:
    """Token ids of B prompts of T turns, padded right to L tokens."""

    ids: Tensor  # int64 [B, L]
    positions: Tensor  # int64 [3, B, L]: time, height and width
    image_slots: Tensor  # int64 [B, 4 T]
    ask_slots: Tensor  # int64 [B, T]: the `assistant` tokens, with logits that predict the answers


@dataclass(frozen=True)
class ReaderOutput:
    """Outputs of the reader at Q selected positions of each prompt."""

    logits: Tensor  # [B, Q, V]
    hidden: Tensor  # [B, Q, D], output of layer BOUND_KEY_LAYER
    log_attention: Tensor | None  # [B, heads, Q, L], last layer, heads of the first key-value group


def patches_of(pixels: np.ndarray) -> Tensor:
    """Return uint8 patches [N, 16, 588] of uint8 images [N, 56, 56, 3], in Qwen2-VL's order.

    The patches that are merged to one token are adjacent. A still image has one frame instead of two.
    """
    half = GRID // 2
    blocks = pixels.transpose(0, 3, 1, 2).reshape(-1, 3, half, 2, PATCH, half, 2, PATCH)
    ordered = blocks.transpose(0, 2, 5, 3, 6, 1, 4, 7)
    flat = ordered.reshape(len(pixels), GRID * GRID, 3 * PATCH * PATCH)
    return torch.from_numpy(np.ascontiguousarray(flat))


def image_features(visual: Any, patches: Tensor) -> Tensor:
    """Return the visual tokens [N, 4, D] of uint8 patches [N, 16, 588]."""
    pixels = patches.float() / 127.5 - 1.0
    # transformers repeats the frame of a still image; the sum of the weights over time gives the same result.
    weight = visual.patch_embed.proj.weight.sum(dim=2).flatten(1)
    hidden = F.linear(pixels, weight)
    n_images, n_patches, _ = hidden.shape
    grid = torch.tensor([[1, GRID, GRID]])
    coordinates = get_vision_position_ids(grid, visual.spatial_merge_size)
    cos, sin = (table[None] for table in visual.rotary_pos_emb(hidden, coordinates))
    for block in visual.blocks:
        attn = block.attn
        qkv = attn.qkv(block.norm1(hidden)).view(n_images, n_patches, 3, attn.num_heads, -1)
        query, key, value = qkv.unbind(2)
        query, key = apply_rotary_pos_emb_vision(query, key, cos, sin)
        mixed = F.scaled_dot_product_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
        hidden = hidden + attn.proj(mixed.transpose(1, 2).flatten(2))
        hidden = hidden + block.mlp(block.norm2(hidden))
    merged: Tensor = visual.merger(hidden.flatten(0, 1))
    return merged.view(n_images, n_patches // 4, -1)


@lru_cache(maxsize=4096)
def _turn_layout(question: str, answer: str | None) -> tuple[np.ndarray, np.ndarray, int]:
    """Return ids [n], positions [3, n] relative to the turn's start, and the ask slot."""
    words = [vocabulary.VOCABULARY[word] for word in vocabulary.split_words(question)]
    ids = [*_HEADER, *words, *_ASK]
    ask = len(ids) - 1
    if answer is not None:
        ids += [vocabulary.VOCABULARY[word] for word in vocabulary.split_words(answer)]
        ids.append(vocabulary.IM_END_ID)
    # The 2 x 2 visual tokens have the same time coordinate. The text after them continues at their largest coordinate
    # plus one, so four tokens advance the position by two.
    positions = np.tile(np.arange(len(ids)) - 2, (3, 1))
    start = _FIRST_IMAGE_SLOT
    positions[:, :start] += 2
    image = np.array([[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 0, 1]])
    positions[:, start : start + IMAGE_TOKENS] = start + image
    return np.array(ids), positions, ask


def pack(prompts: Sequence[Sequence[Turn]]) -> PackedTurns:
    """Return token ids and positions of prompts with equal numbers of turns."""
    rows = []
    for prompt in prompts:
        offset = start = 0
        ids, positions, images, query_positions = [], [], [], []
        for question, answer in prompt:
            turn_ids, turn_positions, ask = _turn_layout(question, answer)
            ids.append(turn_ids)
            positions.append(turn_positions + start)
            images.append(offset + _FIRST_IMAGE_SLOT + np.arange(IMAGE_TOKENS))
            query_positions.append(offset + ask)
            offset += len(turn_ids)
            start += len(turn_ids) - 2  # four visual tokens take two positions
        rows.append((np.concatenate(ids), np.concatenate(positions, 1), images, query_positions))
    width = max(len(row[0]) for row in rows)
    packed_ids = np.full((len(rows), width), vocabulary.PAD_ID, dtype=np.int64)
    packed_positions = np.zeros((3, len(rows), width), dtype=np.int64)
    for i, (row_ids, row_positions, _, _) in enumerate(rows):
        packed_ids[i, : len(row_ids)] = row_ids
        packed_positions[:, i, : len(row_ids)] = row_positions
    return PackedTurns(
        torch.from_numpy(packed_ids),
        torch.from_numpy(packed_positions),
        torch.from_numpy(np.stack([np.concatenate(row[2]) for row in rows])),
        torch.tensor([row[3] for row in rows]),
    )


def _normed(states: Tensor, norm: Any) -> Tensor:
    # One fused kernel instead of the five of transformers.
    return F.rms_norm(states, (states.shape[-1],), norm.weight, norm.variance_epsilon)


def _rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = states.chunk(2, dim=-1)
    return states * cos + torch.cat((-second, first), dim=-1) * sin


@dataclass(frozen=True)
class _SlotView:
    """Rotary tables of all tokens, and the selected positions (slots) of the last layer."""

    cos: Tensor  # [B, 1, L, head width]
    sin: Tensor
    slots: Tensor  # [B, Q]

    def pick(self, states: Tensor) -> Tensor:
        """Return the states [B, Q, D] at the slots of states [B, L, D]."""
        return states.gather(1, self.slots[..., None].expand(-1, -1, states.shape[-1]))

    def mask(self) -> Tensor:
        """Return the causal mask of each slot over the L tokens, [B, 1, Q, L]."""
        return torch.arange(self.cos.shape[2]) <= self.slots[:, None, :, None]


def _heads(states: Tensor, width: int) -> Tensor:
    return states.view(*states.shape[:2], -1, width).transpose(1, 2)


def _attend_all(attn: Any, normed: Tensor, view: _SlotView) -> Tensor:
    """Return the attention output [B, L, D] of every token."""
    query = _rotated(_heads(attn.q_proj(normed), attn.head_dim), view.cos, view.sin)
    key = _rotated(_heads(attn.k_proj(normed), attn.head_dim), view.cos, view.sin)
    value = _heads(attn.v_proj(normed), attn.head_dim)
    mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return mixed.transpose(1, 2).flatten(2)


def _attend_slots(attn: Any, normed: Tensor, view: _SlotView) -> tuple[Tensor, Tensor, Tensor]:
    """Return the attention output [B, Q, D] at the slots, with the queries of the slots and all keys."""
    cos, sin = (view.pick(table[:, 0])[:, None] for table in (view.cos, view.sin))
    query = _rotated(_heads(attn.q_proj(view.pick(normed)), attn.head_dim), cos, sin)
    key = _rotated(_heads(attn.k_proj(normed), attn.head_dim), view.cos, view.sin)
    value = _heads(attn.v_proj(normed), attn.head_dim)
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=view.mask(), enable_gqa=True)
    return mixed.transpose(1, 2).flatten(2), query, key


def _log_attention(query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
    """Return the log attention [B, heads, Q, L] of the heads of the first key-value group."""
    n_heads = query.shape[1] // key.shape[1]
    # The fused attention kernel does not return its weights, so compute them again for one group.
    scores = query[:, :n_heads] @ key[:, :1].transpose(2, 3) / query.shape[-1] ** 0.5
    return torch.log_softmax(scores.masked_fill(~mask, -1e9), dim=-1)


def read_turns(
    model: Reader,
    packed: PackedTurns,
    features: Tensor,
    slots: Tensor,
    *,
    want_attention: bool = False,
) -> ReaderOutput:
    """Return logits at `slots` [B, Q]; `features` are the visual tokens [B, T, 4, D] in order.

    Padding is on the right and attention is causal, so padding does not affect any slot.
    """
    text = model.model.language_model
    hidden = text.embed_tokens(packed.ids)
    batch, _, width = hidden.shape
    image_index = packed.image_slots[..., None].expand(-1, -1, width)
    hidden = hidden.scatter(1, image_index, features.reshape(batch, -1, width))
    cos, sin = (table[:, None] for table in text.rotary_emb(hidden, packed.positions))
    view = _SlotView(cos, sin, slots)
    *lower, last = text.layers
    bound = hidden
    for index, layer in enumerate(lower):
        mixed = _attend_all(layer.self_attn, _normed(hidden, layer.input_layernorm), view)
        hidden = _with_mlp(layer, hidden, mixed)
        if index == BOUND_KEY_LAYER:
            bound = view.pick(hidden)
    normed = _normed(hidden, last.input_layernorm)
    mixed, query, key = _attend_slots(last.self_attn, normed, view)
    hidden = _with_mlp(last, view.pick(hidden), mixed)
    attention = _log_attention(query, key, view.mask()) if want_attention else None
    return ReaderOutput(model.lm_head(_normed(hidden, text.norm)), bound, attention)


def _with_mlp(layer: Any, hidden: Tensor, mixed: Tensor) -> Tensor:
    hidden = hidden + layer.self_attn.o_proj(mixed)
    output: Tensor = hidden + layer.mlp(_normed(hidden, layer.post_attention_layernorm))
    return output


@torch.no_grad()
def encode_images(model: Reader, pixels: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Return the visual tokens [4, D] of every named image."""
    features = image_features(model.model.visual, patches_of(np.stack(list(pixels.values()))))
    return dict(zip(pixels, features, strict=True))


@torch.no_grad()
def answer_prompts(model: Reader, probes: Sequence[Probe], features: Mapping[str, Tensor]) -> list[str]:
    """Return the first word of every answer; all prompts have the same number of shots."""
    words: list[str] = []
    for start in range(0, len(probes), 256):
        batch = probes[start : start + 256]
        packed = pack(
            [[*((d.question, d.answer) for d in row.demonstrations), (row.query.question, None)] for row in batch]
        )
        images = [[*(d.image for d in row.demonstrations), row.query.image] for row in batch]
        visual = torch.stack([torch.stack([features[name] for name in row]) for row in images])
        output = read_turns(model, packed, visual, packed.ask_slots[:, -1:])
        words += [WORDS_BY_ID.get(i, "") for i in output.logits[:, 0].argmax(-1).tolist()]
    return words


def answer_probes(
    model: Reader, probes: Mapping[str, Sequence[Probe]], pixels: Mapping[str, np.ndarray]
) -> dict[str, list[str]]:
    """Return one answer per prompt of every probe; `pixels` contains every image by name."""
    features = encode_images(model, pixels)
    return {name: answer_prompts(model, rows, features) for name, rows in probes.items()}
