"""What a model remembers of many dialogues: keys and values of every token that it has read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from lever_pipe.intention.agent.layers import Places, is_plain, run_layers

GROWTH = 64
"""Places that a memory grows by at least: the states held so far are copied once for all of them."""


def remember(model: Any, n_rows: int, pad_id: int) -> Rows:
    """Return an empty memory of so many dialogues for a causal language model, a row each."""
    return PlainRows(model, n_rows) if is_plain(model) else StockRows(model, n_rows, pad_id)


class PlainRows:
    """The memory of a Qwen3 or a Llama: each row's tokens stand from place 0 on.

    The texts of one pass are laid end to end, so that none is filled up. Prompts that are equal, as those of one task's
    episodes, are read once. Not in inference mode, in which autocast casts all weights anew for each token.
    """

    def __init__(self, model: Any, n_rows: int) -> None:
        self._model = model
        self._lengths = [0] * n_rows
        self._states: _States = {}

    @torch.no_grad()
    def read(self, rows: Sequence[int], texts: Sequence[Sequence[int]]) -> Tensor:
        """Append a text of at least one token to each of n rows and return the float32 logits [n, V] behind it.

        Args:
            rows: in ascending order; the others wait.
            texts: token ids for each of them.
        """
        if self._states or len(rows) < len(self._lengths):
            return self._read(rows, texts)
        first = {tuple(text): index for index, text in enumerate(dict.fromkeys(map(tuple, texts)))}
        self._lengths = [0] * len(first)
        logits_nV = self._read(range(len(first)), list(first))
        index = [first[tuple(text)] for text in texts]
        self.keep(index)
        return logits_nV[torch.tensor(index, device=logits_nV.device)]

    @torch.no_grad()
    def keep(self, rows: Sequence[int]) -> None:
        """Drop every other row."""
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
        hidden_nH = run_layers(self._model, ids_1T, attention.places_T[None], attention, attention.ends)
        logits_nV: Tensor = self._model.lm_head(hidden_nH).float()
        return logits_nV


_States = dict[tuple[int, str], Tensor]
"""Of each layer its keys and its values, [B, S, kv heads, D] with room for texts to come."""


class _Attention:
    """The attention of one pass: n of B rows store T tokens, laid end to end, and read what stands up to them."""

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
        self._n_places = max(begin + size for begin, size in zip(begins, sizes, strict=True))
        self._rows_n, begins_n, sizes_n = torch.tensor([rows, begins, sizes], device=device)
        texts_n = torch.arange(len(rows), device=device)
        starts_n = sizes_n.cumsum(0) - sizes_n
        self._text_T = texts_n.repeat_interleave(sizes_n, output_size=sum(sizes))
        self._column_T = torch.arange(sum(sizes), device=device) - starts_n[self._text_T]
        self.places_T = begins_n[self._text_T] + self._column_T
        self.ends = torch.zeros_like(sizes_n), starts_n + sizes_n - 1
        # Behind a shorter text stands its last token again, as a query whose answer nobody reads.
        columns_W = torch.arange(max(sizes), device=device)
        self._token_nW = starts_n[:, None] + torch.minimum(columns_W, sizes_n[:, None] - 1)
        self._mask_nWS: Tensor | None = None

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, wanted: Places | None) -> Tensor:
        """As `layers.Attend` says of one row [1, T], wanted at the end of each text."""
        stored = self._stored((layer, "keys"), keys[0]), self._stored((layer, "values"), values[0])
        if self._mask_nWS is None:
            self._mask_nWS = self._masked(queries)
        is_packed = self._token_nW.shape[1] > 1  # else each text is a single token, as it stands
        if wanted is not None:
            return _attend(queries[wanted][:, None], *stored, self._mask_nWS[:, -1:])[:, 0]
        if not is_packed:
            return _attend(queries.transpose(0, 1), *stored, self._mask_nWS).transpose(0, 1)
        read_nW = _attend(queries[0, self._token_nW], *stored, self._mask_nWS)
        return read_nW[self._text_T, self._column_T][None]

    def _stored(self, name: tuple[int, str], found: Tensor) -> Tensor:
        """Store states [T, kv heads, D] and return those of the rows up to now, [n, kv heads, S, D]."""
        states = self._states.get(name)
        if states is None or states.shape[1] < self._n_places:
            grown = found.new_zeros(self._n_rows, self._n_places + GROWTH, *found.shape[1:])
            if states is not None:
                grown[:, : states.shape[1]] = states
            states = self._states[name] = grown
        states[self._rows_n[self._text_T], self.places_T] = found
        states = states[:, : self._n_places]
        return (states if len(self._rows_n) == self._n_rows else states.index_select(0, self._rows_n)).transpose(1, 2)

    def _masked(self, queries: Tensor) -> Tensor:
        """Return minus infinity where a query must not look, [n, W, S]; alike in every layer."""
        places_nW = self.places_T[self._token_nW]
        later_nWS = torch.arange(self._n_places, device=places_nW.device) > places_nW[:, :, None]
        return torch.zeros_like(later_nWS, dtype=queries.dtype).masked_fill_(later_nWS, -torch.inf)


def _attend(queries: Tensor, keys: Tensor, values: Tensor, mask_nWS: Tensor) -> Tensor:
    """Return what queries [n, W, heads, D] read, [n, W, heads * D].

    Heads that share keys and values [n, kv heads, S, D] are further queries of one head: nothing is repeated.
    """
    n, width, n_heads, depth = queries.shape
    n_kv = keys.shape[1]
    shared = queries.view(n, width, n_kv, -1, depth).transpose(1, 2).reshape(n, n_kv, -1, depth)
    mask = mask_nWS[:, :, None].expand(-1, -1, n_heads // n_kv, -1).reshape(n, 1, shared.shape[2], -1)
    read = scaled_dot_product_attention(shared, keys, values, attn_mask=mask)
    return read.view(n, n_kv, width, -1, depth).transpose(1, 2).reshape(n, width, -1)


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
        """As `PlainRows` does; the rows that wait read nothing in the same pass."""
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
        """As `PlainRows` does; holes that all kept rows can do without are closed."""
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


Rows = PlainRows | StockRows
"""What a model remembers of several dialogues."""
