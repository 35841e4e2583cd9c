"""The packed executor: a wave is one row of all its new tokens, without any padding.

Only the memory behind the attention (`_memory`) knows which tokens belong to which prompt and which stored keys and
values they continue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lever_pipe.lvlms import _executor, _positions
from lever_pipe.lvlms._decoding import Decoded, DecodeOptions, decode
from lever_pipe.lvlms._flop import TextFlop
from lever_pipe.lvlms._layers import LanguageModel, PassAttention, run_layers
from lever_pipe.lvlms._memory import SlotMemory, SlotWave
from lever_pipe.lvlms._planner import TrieNode
from lever_pipe.lvlms._requests import Result, TokenRequest
from lever_pipe.lvlms._vision import VisionStore


class PackedExecutor:
    """Runs waves as packed rows: computes nodes whose parents it has computed before, and keeps what later ones need.

    Args:
        language: in evaluation mode.
        vision: its image features.
        memory: keys, values and attention.
        options: how answers are searched.
        counters: receives `forwards`, `tokens_prefilled` and the language model's share of `flop`.
    """

    def __init__(
        self,
        language: LanguageModel,
        vision: VisionStore,
        *,
        memory: SlotMemory,
        options: DecodeOptions,
        counters: Counter[str],
    ) -> None:
        self._language = language
        self._vision = vision
        self._memory = memory
        self._options = options
        self._counters = counters
        self._flop = TextFlop(language)
        self._branches = lru_cache(maxsize=4096)(_branch_positions)

    @torch.inference_mode()
    def run(self, wave: Sequence[TrieNode]) -> list[tuple[TokenRequest, Result]]:
        """Return the results of the requests that end in the wave's nodes."""
        placed = self._memory.place(wave)
        try:
            return self._run(wave, placed)
        finally:
            placed.leave()

    @property
    def device(self) -> torch.device:
        """Return where it computes."""
        return self._language.device

    def release(self, nodes: Iterable[TrieNode]) -> None:
        """Forget kept nodes."""
        self._memory.release(nodes)

    def clear(self) -> None:
        """Forget all nodes."""
        self._memory.release(self._memory.kept())

    def _run(self, wave: Sequence[TrieNode], placed: SlotWave) -> list[tuple[TokenRequest, Result]]:
        ended = _executor.with_requests(wave)
        asked = [request for _, request in ended]
        wanted = _wanted(wave)
        hidden = run_layers(
            self._language,
            self._embed(wave),
            self._tensor(self._rotary_positions(wave)),
            placed.attention,
            self._tensor(wanted) if asked else None,
        )
        self._count(wave)
        if hidden is None:
            return []
        read = _executor.read_out(self._language, hidden, asked, self._options)
        nodes = [node for node, request in ended if request.generate]

        def search(alive: list[int], first: Tensor) -> list[Decoded]:
            return decode(_PackedRows(self, placed, nodes, alive), first, self._options)

        return _executor.join(asked, read.scores, _executor.generated(read, search))

    def _rotary_positions(self, wave: Sequence[TrieNode]) -> _positions.Array:
        """Return the rotary positions of a packed row [AXES, tokens]."""
        relative = [part for node in wave for part in (node.layout.positions, self._branches(node.branches))]
        starts = [start for node in wave for start in (node.start, node.end)]
        moved: _positions.Array = np.concatenate(relative, axis=1)
        moved += np.repeat(starts, [part.shape[1] for part in relative])
        return moved

    def _embed(self, wave: Sequence[TrieNode]) -> Tensor:
        ids = self._tensor(np.concatenate([part for node in wave for part in _node_ids(node)]))
        digests = [digest for node in wave for digest in node.images]
        return self._language.embed(ids, self._vision.features(digests) if digests else ())

    def feed(self, ids: Tensor, starts: Tensor, step: int, attention: PassAttention) -> Tensor:
        """Return the logits [B, n, V] behind one token `ids` [B, n] more, n alternatives a row."""
        rows, width = ids.shape
        positions = _positions.decode_positions(starts, step)
        flat = ids.flatten()
        hidden = run_layers(
            self._language,
            self._language.embed(flat),
            positions[None, :, None].expand(_positions.AXES, rows, width).flatten(1),
            attention,
            torch.arange(flat.numel(), device=flat.device),
        )
        assert hidden is not None
        return self._language.logits(hidden).view(rows, width, -1)

    def count_step(self, lengths: Iterable[int], width: int, step: int) -> None:
        """Count a decoding pass of `width` tokens a row behind prompts of these lengths."""
        self._counters["forwards"] += 1
        self._counters["flop"] += sum(self._flop.of_step(width, length + step) for length in lengths)

    def _count(self, wave: Sequence[TrieNode]) -> None:
        self._counters["forwards"] += 1
        self._counters["tokens_prefilled"] += sum(node.size for node in wave)
        self._counters["flop"] += sum(self._flop.of_node(node) for node in wave)

    def _tensor(self, array: Any) -> Tensor:
        return torch.from_numpy(array).to(self._language.device)


class _PackedRows:
    """Those of a wave's generating nodes that are decoded (`_decoding.Continuation`)."""

    def __init__(
        self, executor: PackedExecutor, placed: SlotWave, nodes: Sequence[TrieNode], alive: Sequence[int]
    ) -> None:
        self._executor = executor
        self._placed = placed
        self._nodes = nodes
        self._alive = list(alive)
        self._ends: Tensor | None = None

    def shown(self, vocabulary: int) -> Tensor:
        """Return which tokens stand in each row's prompt."""
        return _executor.shown([self._nodes[index] for index in self._alive], vocabulary, self._executor.device)

    def feed(self, ids: Tensor, step: int, visible: Tensor) -> Tensor:
        """Return the logits behind one token more."""
        alive = [self._nodes[index] for index in self._alive]
        if self._ends is None:
            self._ends = torch.tensor([node.end for node in alive], device=ids.device)
        attention = self._placed.step(self._alive, step, visible)
        self._executor.count_step((node.length for node in alive), ids.shape[1], step)
        return self._executor.feed(ids, self._ends, step, attention)

    def select(self, rows: Tensor) -> None:
        """Keep only these rows."""
        self._alive = [self._alive[row] for row in rows.tolist()]
        self._ends = None


def _node_ids(node: TrieNode) -> list[_positions.Array]:
    answers = node.request.answers if node.request else ()
    branches = [token for answer in answers for token in answer[:-1]]
    return [node.layout.ids, np.asarray(branches, dtype=np.int64)] if branches else [node.layout.ids]


def _branch_positions(branches: tuple[int, ...]) -> _positions.Array:
    """Return the positions of answer tokens behind a prompt, relative to its end [AXES, answer tokens]."""
    counted = [_positions.answer_positions(0, count) for count in (0, *branches)]
    return np.broadcast_to(np.concatenate(counted), (_positions.AXES, sum(branches)))


def _wanted(wave: Sequence[TrieNode]) -> _positions.Array:
    """Return where, in the packed row, the last prompt tokens and the answer tokens of requests stand."""
    found, begin = [], 0
    for node in wave:
        end = begin + node.size + node.n_branches
        if node.request is not None:
            found.append(np.arange(begin + node.size - 1, end))
        begin = end
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)
