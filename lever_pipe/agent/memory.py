"""What a model remembers of many dialogues: keys and values of every token that it has read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from lever_pipe.agent.layers import is_plain, run_layers

GROWTH = 64
"""Places that a memory grows by at least: the states held so far are copied once for all of them."""


class Rows(Protocol):
    """The memory of B dialogues, a row each."""

    def read(self, rows: Sequence[int], texts: Sequence[Sequence[int]]) -> Tensor:
        """Append a text of at least one token to each of n rows and return the float32 logits [n, V] behind it.

        Args:
            rows: in ascending order; the others wait.
            texts: token ids for each of them.
        """
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Drop every other row."""
        ...


def remember(model: Any, n_rows: int, pad_id: int) -> Rows:
    """Return an empty memory for a causal language model."""
    return (PlainRows if is_plain(model) else StockRows)(model, n_rows, pad_id)


class PlainRows:
    """The memory of a Qwen3: each row's tokens stand from place 0 on.

    A shorter text is filled at its right end. What fills it is stored behind the row's last token, where no query
    looks before a token of the next text stands there.
    """

    def __init__(self, model: Any, n_rows: int, pad_id: int) -> None:
        self._model = model
        self._pad_id = pad_id
        self._lengths = [0] * n_rows
        self._states: _States = {}

    @torch.inference_mode()
    def read(self, rows: Sequence[int], texts: Sequence[Sequence[int]]) -> Tensor:
        """As `Rows` says."""
        device, width = self._model.device, max(map(len, texts))
        begins = [self._lengths[row] for row in rows]
        for row, text in zip(rows, texts, strict=True):
            self._lengths[row] += len(text)
        ids_nW = torch.tensor([[*text, *[self._pad_id] * (width - len(text))] for text in texts], device=device)
        places_nW = torch.tensor(begins, device=device)[:, None] + torch.arange(width, device=device)
        attention = _Attention(
            self._states,
            torch.tensor(rows, device=device),
            places_nW,
            n_rows=len(self._lengths),
            n_places=max(self._lengths[row] for row in rows),
            room=max(begins) + width,
        )
        ends = torch.arange(len(rows), device=device), torch.tensor([len(text) - 1 for text in texts], device=device)
        logits_nV: Tensor = self._model.lm_head(run_layers(self._model, ids_nW, places_nW, attention, ends)).float()
        return logits_nV

    @torch.inference_mode()
    def keep(self, rows: Sequence[int]) -> None:
        """As `Rows` says."""
        if len(rows) == len(self._lengths):
            return
        self._lengths = [self._lengths[row] for row in rows]
        index = torch.tensor(rows, device=self._model.device)
        for name, states in self._states.items():
            self._states[name] = states[index]


_States = dict[tuple[int, str], Tensor]
"""Of each layer its keys and its values, [B, S, kv heads, D] with room for texts to come."""


class _Attention:
    """The attention of one pass: n of B rows store W places each and read what stands up to them."""

    def __init__(
        self, states: _States, rows_n: Tensor, places_nW: Tensor, *, n_rows: int, n_places: int, room: int
    ) -> None:
        self._states = states
        self._rows_n = rows_n
        self._places_nW = places_nW
        self._n_rows = n_rows
        self._n_places = n_places
        self._room = room
        self._is_later_nWS = torch.arange(n_places, device=rows_n.device) > places_nW[:, :, None]
        self._mask: Tensor | None = None

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return what the queries read, the heads that share keys and values as further queries of one head."""
        n, width, n_heads, depth = queries.shape
        n_kv = keys.shape[2]
        queries = queries.view(n, width, n_kv, -1, depth).transpose(1, 2).reshape(n, n_kv, -1, depth)
        stored = self._stored((layer, "keys"), keys), self._stored((layer, "values"), values)
        read = scaled_dot_product_attention(queries, *stored, attn_mask=self._masked(queries, n_heads // n_kv))
        return read.view(n, n_kv, width, -1, depth).transpose(1, 2).reshape(n, width, -1)

    def _stored(self, name: tuple[int, str], found: Tensor) -> Tensor:
        """Store states [n, W, kv heads, D] and return those of the rows up to now, [n, kv heads, S, D]."""
        states = self._states.get(name)
        if states is None or states.shape[1] < self._room:
            grown = found.new_zeros(self._n_rows, self._room + GROWTH, *found.shape[2:])
            if states is not None:
                grown[:, : states.shape[1]] = states
            states = self._states[name] = grown
        states[self._rows_n[:, None], self._places_nW] = found
        states = states[:, : self._n_places]
        return (states if len(self._rows_n) == self._n_rows else states[self._rows_n]).transpose(1, 2)

    def _masked(self, queries: Tensor, n_shared: int) -> Tensor:
        """Return minus infinity where a query must not look, [n, 1, W * n_shared, S], alike in every layer."""
        if self._mask is None:
            later = self._is_later_nWS.repeat_interleave(n_shared, dim=1)[:, None]
            self._mask = torch.zeros_like(later, dtype=queries.dtype).masked_fill_(later, -torch.inf)
        return self._mask


class StockRows:
    """The memory of any other model: blocks as wide as the longest text, stored one behind the other.

    A row has holes where it waited for others or had less to read: they are masked, and closed by `keep`.
    """

    def __init__(self, model: Any, n_rows: int, pad_id: int) -> None:
        from transformers import DynamicCache

        self._model = model
        self._pad_id = pad_id
        self._cache = DynamicCache()
        self._taken_BS = torch.zeros(n_rows, 0, dtype=torch.int64, device=model.device)
        self._length_B1 = torch.zeros(n_rows, 1, dtype=torch.int64, device=model.device)

    @torch.inference_mode()
    def read(self, rows: Sequence[int], texts: Sequence[Sequence[int]]) -> Tensor:
        """As `Rows` says; the rows that wait read nothing in the same pass."""
        ids_BW, taken_BW = self._block(dict(zip(rows, texts, strict=True)), max(map(len, texts)))
        positions_BW = (self._length_B1 + taken_BW.cumsum(dim=1) - 1).clamp(min=0)
        self._taken_BS = torch.cat([self._taken_BS, taken_BW], dim=1)
        self._length_B1 = self._length_B1 + taken_BW.sum(dim=1, keepdim=True)
        output = self._model(
            input_ids=ids_BW,
            attention_mask=self._taken_BS,
            position_ids=positions_BW,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits_BV: Tensor = output.logits[:, -1].float()
        return logits_BV[torch.tensor(rows, device=logits_BV.device)]

    @torch.inference_mode()
    def keep(self, rows: Sequence[int]) -> None:
        """As `Rows` says; holes that all kept rows can do without are closed."""
        index = torch.tensor(rows, device=self._model.device)
        taken_BS = self._taken_BS[index]
        self._length_B1 = self._length_B1[index]
        n_places = int(self._length_B1.max())
        # Tokens first, in their order.
        place_BS = taken_BS.argsort(dim=1, descending=True, stable=True)[:, :n_places]
        self._taken_BS = taken_BS.gather(1, place_BS)
        for layer in self._cache.layers:
            layer.keys = _gathered(layer.keys, index, place_BS)
            layer.values = _gathered(layer.values, index, place_BS)

    def _block(self, texts: Mapping[int, Sequence[int]], width: int) -> tuple[Tensor, Tensor]:
        """Return ids and taken places, int64 [B, W]; short texts have their holes on the left."""
        whole = [list(texts.get(row, ())) for row in range(len(self._taken_BS))]
        ids = [[self._pad_id] * (width - len(text)) + text for text in whole]
        taken = [[0] * (width - len(text)) + [1] * len(text) for text in whole]
        return torch.tensor(ids, device=self._model.device), torch.tensor(taken, device=self._model.device)


def _gathered(states: Tensor, index: Tensor, place_BS: Tensor) -> Tensor:
    """Return the chosen rows and places of cached states [B, H, S, D]."""
    chosen = states[index]
    return chosen.gather(2, place_BS[:, None, :, None].expand(-1, chosen.shape[1], -1, chosen.shape[3]))
