"""The padded executor: a wave is a batch with a row a node, padded on the left.

It shares the plan and the layers with the packed executor, but neither memory nor masks: a cross-check, and the way
out where packed attention is not to be trusted. Its buffers copy what a row continues, so its memory exceeds the
plan's budget by the padding and these copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from lever_pipe.lvlms import _executor, _positions
from lever_pipe.lvlms._decoding import Decoded, DecodeOptions, decode
from lever_pipe.lvlms._flop import TextFlop
from lever_pipe.lvlms._layers import LanguageModel, run_layers
from lever_pipe.lvlms._planner import TrieNode
from lever_pipe.lvlms._requests import Result, TokenRequest
from lever_pipe.lvlms._vision import VisionStore

PADDING, PROMPT = -1, 0  # from 1 on: the given answers


class PaddedExecutor:
    """Runs waves as padded batches (`_executor.Executor`).

    Args:
        language: in evaluation mode.
        vision: its image features.
        options: how answers are searched.
        counters: receives `forwards`, `tokens_prefilled`, `tokens_padded` and the language model's share of `flop`.
    """

    def __init__(
        self, language: LanguageModel, vision: VisionStore, *, options: DecodeOptions, counters: Counter[str]
    ) -> None:
        self._language = language
        self._vision = vision
        self._options = options
        self._counters = counters
        self._flop = TextFlop(language)
        self._stored: dict[TrieNode, tuple[Tensor, Tensor]] = {}  # of kept nodes, [layers, kv heads, tokens, width]

    @torch.inference_mode()
    def run(self, wave: Sequence[TrieNode]) -> list[tuple[TokenRequest, Result]]:
        """Return the results of the requests that end in the wave's nodes."""
        batch = _Batch(wave, self._language.device, _positions.AXES)
        buffer = self._buffer(wave, batch)
        hidden = run_layers(self._language, self._embed(wave, batch), batch.positions, buffer, batch.tail)
        assert hidden is not None
        self._count(wave, batch)
        self._keep(wave, buffer)
        ended = [(row, node, node.request) for row, node in enumerate(wave) if node.request is not None]
        if not ended:
            return []
        asked = [request for _, _, request in ended]
        states = torch.cat([hidden[row, : 1 + node.n_branches] for row, node, _ in ended])
        read = _executor.read_out(self._language, states, asked, self._options)
        generating = [row for row, _, request in ended if request.generate]

        def search(places: list[int], first: Tensor) -> list[Decoded]:
            rows = [generating[place] for place in places]
            index = torch.tensor(rows, device=first.device)
            continuation = _PaddedRows(self, buffer.rows(index), [wave[row] for row in rows], batch.prompt[index])
            return decode(continuation, first, self._options)

        return _executor.join(asked, read.scores, _executor.generated(read, search))

    def release(self, nodes: Iterable[TrieNode]) -> None:
        """Forget kept nodes."""
        for node in nodes:
            del self._stored[node]

    def clear(self) -> None:
        """Forget all nodes."""
        self._stored.clear()

    def feed(self, ids: Tensor, starts: Tensor, step: int, buffer: _Buffer) -> Tensor:
        """Return the logits [B, n, V] behind one token `ids` [B, n] more, n alternatives a row."""
        rows, width = ids.shape
        positions = _positions.decode_positions(starts, step)[None, :, None].expand(_positions.AXES, rows, width)
        everything = torch.arange(rows, device=ids.device)[:, None], torch.arange(width, device=ids.device)[None]
        hidden = run_layers(self._language, self._language.embed(ids), positions, buffer, everything)
        assert hidden is not None
        return self._language.logits(hidden)

    def count_step(self, lengths: Iterable[int], width: int, step: int) -> None:
        """Count a decoding pass of `width` tokens a row behind prompts of these lengths."""
        self._counters["forwards"] += 1
        self._counters["flop"] += sum(self._flop.of_step(width, length + step) for length in lengths)

    def _buffer(self, wave: Sequence[TrieNode], batch: _Batch) -> _Buffer:
        spare = (self._options.max_new_tokens - 1) * self._options.num_beams
        language, config = self._language, self._language.config
        columns = batch.past + batch.ids.shape[1]
        shape = (config.num_hidden_layers, len(wave), config.num_key_value_heads, columns + spare, language.head_width)
        # Zeros, because a masked column still enters the product with weight zero, and zero times a NaN is NaN.
        keys, values = (torch.zeros(shape, dtype=language.dtype, device=language.device) for _ in range(2))
        buffer = _Buffer(keys, values, batch.past, columns, batch.mask)
        for row, node in enumerate(wave):
            end = batch.past
            for ancestor in reversed(node.path()[:-1]):
                stored = self._stored[ancestor]
                buffer.keys[:, row, :, end - ancestor.size : end] = stored[0]
                buffer.values[:, row, :, end - ancestor.size : end] = stored[1]
                end -= ancestor.size
        return buffer

    def _keep(self, wave: Sequence[TrieNode], buffer: _Buffer) -> None:
        end = buffer.begin + max(node.size for node in wave)
        for row, node in enumerate(wave):
            if node.kept:
                own = slice(end - node.size, end)
                self._stored[node] = buffer.keys[:, row, :, own].clone(), buffer.values[:, row, :, own].clone()

    def _embed(self, wave: Sequence[TrieNode], batch: _Batch) -> Tensor:
        digests = [digest for node in wave for digest in node.images]
        features = self._vision.features(digests) if digests else ()
        return self._language.embed(batch.ids, features, batch.prompt[:, batch.past :])

    def _count(self, wave: Sequence[TrieNode], batch: _Batch) -> None:
        self._counters["forwards"] += 1
        self._counters["tokens_prefilled"] += sum(node.size for node in wave)
        self._counters["tokens_padded"] += batch.ids.numel() - sum(node.size + node.n_branches for node in wave)
        self._counters["flop"] += sum(self._flop.of_node(node) for node in wave)


class _Batch:
    """Tensors of a wave: `past` columns of stored tokens, then prompt columns padded on the left, then answers.

    Attributes:
        ids: token ids of the new columns [B, n].
        positions: their rotary positions [axes, B, n].
        prompt: which columns are prompt tokens, bool [B, past + n].
        mask: who sees whom, bool [B, 1, n, past + n].
        tail: index of the last prompt column and the answer columns.
        past: columns of stored tokens.
    """

    def __init__(self, wave: Sequence[TrieNode], device: torch.device, axes: int) -> None:
        self.past = max(node.past for node in wave)
        n_prompt = max(node.size for node in wave)
        columns = n_prompt + max(node.n_branches for node in wave)
        shape = (len(wave), columns)
        ids = np.zeros(shape, dtype=np.int64)
        positions = np.zeros((axes, *shape), dtype=np.int64)
        branch = np.full((len(wave), self.past + columns), PADDING, dtype=np.int64)
        for row, node in enumerate(wave):
            begin = n_prompt - node.size
            ids[row, begin:n_prompt] = node.layout.ids
            positions[:, row, begin:n_prompt] = node.layout.positions + node.start
            branch[row, self.past - node.past : self.past] = PROMPT
            branch[row, self.past + begin : self.past + n_prompt] = PROMPT
            column = n_prompt
            for number, answer in enumerate(node.request.answers if node.request else (), start=1):
                end = column + len(answer) - 1
                ids[row, column:end] = answer[:-1]
                positions[:, row, column:end] = _positions.answer_positions(node.end, end - column)
                branch[row, self.past + column : self.past + end] = number
                column = end
        self.ids = torch.from_numpy(ids).to(device)
        self.positions = torch.from_numpy(positions).to(device)
        branches = torch.from_numpy(branch).to(device)
        self.prompt = branches == PROMPT
        self.mask = self._mask(branches)
        rows = torch.arange(len(wave), device=device)[:, None]
        self.tail = rows, torch.arange(n_prompt - 1, columns, device=device)[None]

    def _mask(self, branch: Tensor) -> Tensor:
        query, key = branch[:, self.past :, None], branch[:, None, :]
        causal = torch.ones(query.shape[1], key.shape[2], dtype=torch.bool, device=branch.device).tril(self.past)
        seen = causal & (query >= PROMPT) & ((key == PROMPT) | (key == query))
        # A padding column sees itself: a query that sees nothing would turn into NaN and spread through the values.
        itself = torch.eye(query.shape[1], dtype=torch.bool, device=branch.device)
        seen[:, :, self.past :] |= itself
        return seen[:, None]


class _Buffer:
    """Keys and values of a batch [layers, B, kv heads, columns, width] (`_layers.Attention`).

    Attributes:
        begin: the first column that the present pass writes.
        end: the column behind the last one.
        mask: which columns up to the end each new token sees, bool [B, 1, n, end].
    """

    def __init__(self, keys: Tensor, values: Tensor, begin: int, end: int, mask: Tensor) -> None:
        self.keys = keys
        self.values = values
        self.begin = begin
        self.end = end
        self.mask = mask

    def store(self, layer: int, keys: Tensor, values: Tensor) -> None:
        self.keys[layer, :, :, self.begin : self.end] = keys.transpose(1, 2)
        self.values[layer, :, :, self.begin : self.end] = values.transpose(1, 2)

    def attend(self, layer: int, queries: Tensor, *, wanted: bool) -> Tensor:
        del wanted  # the wanted tokens are the last columns
        width = queries.shape[1]
        keys, values = self.keys[layer, :, :, : self.end], self.values[layer, :, :, : self.end]
        shared = queries.shape[2] // keys.shape[1]
        read = scaled_dot_product_attention(
            queries.transpose(1, 2),
            keys.repeat_interleave(shared, dim=1),
            values.repeat_interleave(shared, dim=1),
            attn_mask=self.mask[:, :, -width:],
        )
        return read.transpose(1, 2)

    def rows(self, index: Tensor) -> _Buffer:
        """Return a buffer with only the rows of `index`."""
        return _Buffer(
            self.keys.index_select(1, index), self.values.index_select(1, index), self.begin, self.end, self.mask[index]
        )


class _PaddedRows:
    """The generating rows of a wave while they are decoded (`_decoding.Continuation`).

    Args:
        executor: runs the passes.
        buffer: these rows' buffer.
        nodes: a row's node.
        prompt: which columns of the buffer hold a row's prompt, bool [B, end].
    """

    def __init__(self, executor: PaddedExecutor, buffer: _Buffer, nodes: Sequence[TrieNode], prompt: Tensor) -> None:
        self._executor = executor
        self._buffer = buffer
        self._nodes = list(nodes)
        self._prompt = prompt

    def shown(self, vocabulary: int) -> Tensor:
        """Return which tokens stand in each row's prompt."""
        return _executor.shown(self._nodes, vocabulary, self._prompt.device)

    def feed(self, ids: Tensor, step: int, visible: Tensor) -> Tensor:
        """Return the logits behind one token more."""
        width = ids.shape[1]
        buffer = self._buffer
        buffer.begin, buffer.end = buffer.end, buffer.end + width
        prompt = self._prompt[:, None].expand(-1, width, -1)
        buffer.mask = torch.cat([prompt, visible], dim=-1)[:, None]
        self._executor.count_step((node.length for node in self._nodes), width, step)
        ends = torch.tensor([node.end for node in self._nodes], device=ids.device)
        return self._executor.feed(ids, ends, step, buffer)

    def select(self, rows: Tensor) -> None:
        """Keep only these rows."""
        self._buffer = self._buffer.rows(rows)
        self._nodes = [self._nodes[row] for row in rows.tolist()]
        self._prompt = self._prompt[rows]
