"""Batched generation for many dialogues; no token is computed twice.

`DialogueCache` stores the keys and values of all tokens so far, and `speak` generates one turn of each dialogue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from lever_pipe.intention.agent.layers import Positions, run_layers

GROWTH = 64
"""Spare positions of a reallocated cache, so that the stored states are copied once for many new tokens."""
UNIFORMS_PER_DRAW = 64


def uniforms(stream: np.random.Generator) -> Iterator[float]:
    """Yield the uniform numbers of a stream one by one; drawing in blocks gives the same numbers."""
    while True:
        yield from stream.random(UNIFORMS_PER_DRAW).tolist()


def draw_tokens(logits_BV: Tensor, uniforms_B: Tensor, *, temperature: float) -> tuple[Tensor, Tensor]:
    """Return tokens sampled at a temperature, int64 [B], and their log-probabilities at it, float64 [B].

    Sampling inverts a row's cumulative distribution at the row's uniform number, float64 in [0, 1). A row's sample
    therefore does not depend on the other rows of the batch.
    """
    # float64: over a large vocabulary, a float32 cumulative sum would lose tokens of small probability.
    log_probs_BV = (logits_BV.double() / temperature).log_softmax(dim=-1)
    cumulative_BV = log_probs_BV.exp().cumsum(dim=-1)
    total_B1 = cumulative_BV[:, -1:]
    # Rounding must not raise a target to the total: the search would pass the last token of positive probability.
    target_B1 = torch.minimum(uniforms_B[:, None] * total_B1, torch.nextafter(total_B1, torch.zeros_like(total_B1)))
    return _with_log_probs(torch.searchsorted(cumulative_BV, target_B1, right=True), log_probs_BV)


def likeliest_tokens(logits_BV: Tensor) -> tuple[Tensor, Tensor]:
    """Return the most probable tokens, int64 [B], and their log-probabilities at temperature 1, float64 [B]."""
    return _with_log_probs(logits_BV.argmax(dim=-1, keepdim=True), logits_BV.double().log_softmax(dim=-1))


def _with_log_probs(tokens_B1: Tensor, log_probs_BV: Tensor) -> tuple[Tensor, Tensor]:
    return tokens_B1.squeeze(1), log_probs_BV.gather(1, tokens_B1).squeeze(1)


class Sampled(NamedTuple):
    """The sampled tokens of one row in one turn."""

    tokens: list[int]
    log_probs: list[float]
    """At the sampling temperature; for greedy decoding at temperature 1."""


class Speaker(NamedTuple):
    """Input of one row for its next turn."""

    unread: Sequence[int]
    """Tokens that are not cached yet; at least one."""
    limit: int
    """Maximum number of tokens to generate; at least one."""
    uniforms: Iterator[float]
    """One number is used per sampled token; greedy decoding uses none."""


@dataclass(frozen=True)
class Decoding:
    """Settings of token selection."""

    end_ids: frozenset[int]
    temperature: float
    greedy: bool

    def choose(self, logits_BV: Tensor, uniforms: Sequence[Iterator[float]]) -> tuple[list[int], list[float]]:
        """Return the selected token and its log-probability for each row."""
        if self.greedy:
            tokens_B, log_probs_B = likeliest_tokens(logits_BV)
        else:
            uniforms_B = torch.tensor([next(row) for row in uniforms], dtype=torch.float64, device=logits_BV.device)
            tokens_B, log_probs_B = draw_tokens(logits_BV, uniforms_B, temperature=self.temperature)
        return tokens_B.tolist(), log_probs_B.tolist()


@dataclass
class GenerationCounts:
    """Forward passes and tokens of a model."""

    forwards: int = 0
    prefill_tokens: int = 0
    """Tokens of prompts, feedback and ends of turns; equal prompts count for each dialogue, although computed once."""
    decode_tokens: int = 0
    """Sampled tokens that were passed through the model one by one."""


def speak(
    rows: DialogueCache, speakers: Sequence[Speaker], decoding: Decoding, counts: GenerationCounts
) -> list[Sampled]:
    """Process the unread tokens of every row and generate one turn of each.

    A turn ends with its first end token or at its limit. The last generated token does not enter the cache: it is the
    first unread token of the row's next turn.
    """
    turns = [Sampled([], []) for _ in speakers]
    active = list(range(len(speakers)))
    unread = [speaker.unread for speaker in speakers]
    counts.prefill_tokens += sum(map(len, unread))
    while True:
        logits_BV = rows.read(active, unread)
        counts.forwards += 1
        tokens, log_probs = decoding.choose(logits_BV, [speakers[row].uniforms for row in active])
        for row, token, log_prob in zip(active, tokens, log_probs, strict=True):
            turns[row].tokens.append(token)
            turns[row].log_probs.append(log_prob)
        active = [
            row
            for row, token in zip(active, tokens, strict=True)
            if token not in decoding.end_ids and len(turns[row].tokens) < speakers[row].limit
        ]
        if not active:
            return turns
        unread = [turns[row].tokens[-1:] for row in active]
        counts.decode_tokens += len(active)


class DialogueCache:
    """The key-value cache of several dialogues, one row each, whose tokens start at position 0.

    The texts of one pass are concatenated into one row, so that no padding is needed. Equal prompts, as in the episodes
    of one task, are computed once.
    """

    def __init__(self, model: Any, n_rows: int) -> None:
        self._model = model
        self._lengths = [0] * n_rows
        self._states: _States = {}

    # `no_grad` instead of inference mode, in which autocast would cast all weights again for each token.
    @torch.no_grad()
    def read(self, rows: Sequence[int], texts: Sequence[Sequence[int]]) -> Tensor:
        """Append a text of at least one token to each of n rows and return the next token's float32 logits [n, V].

        The rows must be in ascending order; other rows stay unchanged.
        """
        if self._states or len(rows) < len(self._lengths):
            return self._read(rows, texts)
        first = {tuple(text): index for index, text in enumerate(dict.fromkeys(map(tuple, texts)))}
        self._lengths = [0] * len(first)
        logits_nV = self._read(range(len(first)), list(first))
        index = [first[tuple(text)] for text in texts]
        self.keep(index)  # from one row per distinct prompt to one per dialogue
        return logits_nV[torch.tensor(index, device=logits_nV.device)]

    @torch.no_grad()
    def keep(self, rows: Sequence[int]) -> None:
        """Select these rows and drop all others."""
        self._lengths = [self._lengths[row] for row in rows]
        index = torch.tensor(rows, device=self._model.device)
        for name, states in self._states.items():
            self._states[name] = states.index_select(0, index)

    def _read(self, rows: Sequence[int], texts: Sequence[Sequence[int]]) -> Tensor:
        begins = [self._lengths[row] for row in rows]
        for row, text in zip(rows, texts, strict=True):
            self._lengths[row] += len(text)
        device, sizes = self._model.device, [len(text) for text in texts]
        attention = _Attention(self._states, rows, begins, sizes, n_rows=len(self._lengths), device=device)
        ids_1T = torch.tensor([[token for text in texts for token in text]], device=device)
        hidden_nH = run_layers(self._model, ids_1T, attention.positions_T[None], attention, attention.ends)
        logits_nV: Tensor = self._model.lm_head(hidden_nH).float()
        return logits_nV


_States = dict[tuple[int, str], Tensor]
"""Keys and values of each layer, [B, S, kv heads, D], with spare positions for later texts."""


class _Attention:
    """Causal attention of one pass, in which n of B rows append T concatenated tokens to the cache."""

    def __init__(
        self,
        states: _States,
        rows: Sequence[int],
        begins: Sequence[int],
        sizes: Sequence[int],
        *,
        n_rows: int,
        device: torch.device,
    ) -> None:
        self._states = states
        self._n_rows = n_rows
        self._n_positions = max(begin + size for begin, size in zip(begins, sizes, strict=True))
        self._rows_n, begins_n, sizes_n = torch.tensor([rows, begins, sizes], device=device)
        texts_n = torch.arange(len(rows), device=device)
        starts_n = sizes_n.cumsum(0) - sizes_n
        self._text_T = texts_n.repeat_interleave(sizes_n, output_size=sum(sizes))
        self._column_T = torch.arange(sum(sizes), device=device) - starts_n[self._text_T]
        self.positions_T = begins_n[self._text_T] + self._column_T
        self.ends = torch.zeros_like(sizes_n), starts_n + sizes_n - 1
        # A shorter text is filled up with its last token again, as a query whose output is unused.
        columns_W = torch.arange(max(sizes), device=device)
        self._token_nW = starts_n[:, None] + torch.minimum(columns_W, sizes_n[:, None] - 1)
        self._mask_nWS: Tensor | None = None

    def __call__(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, positions: Positions | None
    ) -> Tensor:
        """Return the attention's output as `layers.Attend` does, for one row [1, T]."""
        stored = self._stored((layer, "keys"), keys[0]), self._stored((layer, "values"), values[0])
        if self._mask_nWS is None:  # one mask for all layers; its type is known only here
            self._mask_nWS = self._masked(queries)
        is_packed = self._token_nW.shape[1] > 1  # else each text is a single token and needs no gathering
        if positions is not None:
            return _attend(queries[positions][:, None], *stored, self._mask_nWS[:, -1:])[:, 0]
        if not is_packed:
            return _attend(queries.transpose(0, 1), *stored, self._mask_nWS).transpose(0, 1)
        read_nW = _attend(queries[0, self._token_nW], *stored, self._mask_nWS)
        return read_nW[self._text_T, self._column_T][None]

    def _stored(self, name: tuple[int, str], fresh: Tensor) -> Tensor:
        """Store states [T, kv heads, D] and return all states of the rows so far, [n, kv heads, S, D]."""
        states = self._states.get(name)
        if states is None or states.shape[1] < self._n_positions:
            grown = fresh.new_zeros(self._n_rows, self._n_positions + GROWTH, *fresh.shape[1:])
            if states is not None:
                grown[:, : states.shape[1]] = states
            states = self._states[name] = grown
        states[self._rows_n[self._text_T], self.positions_T] = fresh
        states = states[:, : self._n_positions]
        # `index_select` would copy the states even if it selects all rows.
        return (states if len(self._rows_n) == self._n_rows else states.index_select(0, self._rows_n)).transpose(1, 2)

    def _masked(self, queries: Tensor) -> Tensor:
        """Return the additive causal mask [n, W, S], the same in every layer."""
        positions_nW = self.positions_T[self._token_nW]
        later_nWS = torch.arange(self._n_positions, device=positions_nW.device) > positions_nW[:, :, None]
        return torch.zeros_like(later_nWS, dtype=queries.dtype).masked_fill_(later_nWS, -torch.inf)


def _attend(queries: Tensor, keys: Tensor, values: Tensor, mask_nWS: Tensor) -> Tensor:
    """Return the attention output [n, W, heads * D] of queries [n, W, heads, D].

    Query heads that share keys and values [n, kv heads, S, D] become further queries of one head, so that neither keys
    nor values are copied.
    """
    n, width, n_heads, depth = queries.shape
    n_kv = keys.shape[1]
    shared = queries.view(n, width, n_kv, -1, depth).transpose(1, 2).reshape(n, n_kv, -1, depth)
    mask = mask_nWS[:, :, None].expand(-1, -1, n_heads // n_kv, -1).reshape(n, 1, shared.shape[2], -1)
    mixed = scaled_dot_product_attention(shared, keys, values, attn_mask=mask)
    return mixed.view(n, n_kv, width, -1, depth).transpose(1, 2).reshape(n, width, -1)
