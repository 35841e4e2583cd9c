"""A wave of the plan: one packed row of all its new tokens, without padding, and the results read from it.

Only the slots used by the attention (`_memory`) determine which tokens belong to which prompt and which stored keys and
values they continue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lever_pipe.lvlms._decoding import decode
from lever_pipe.lvlms._layers import run_layers
from lever_pipe.lvlms._memory import PassAttention, SlotPool, WaveSlots
from lever_pipe.lvlms._planner import Budget, TrieNode
from lever_pipe.lvlms._requests import AXES, Answer, Array, Result, Scores, TokenRequest
from lever_pipe.lvlms._vision import VisionStore
from lever_pipe.lvlms.protocol import DecodeOptions

VALUES_PER_BLOCK = 2**27  # log-probabilities in memory at one time: half a gigabyte


class Waves:
    """Computes nodes whose parents are computed, and keeps the keys and values that later nodes need.

    `model` is in evaluation mode; `counters` count `forwards` and `tokens_prefilled`.
    """

    def __init__(self, model: Any, vision: VisionStore, budget: Budget, options: DecodeOptions) -> None:
        self.pool = SlotPool(model, budget.stored)
        self._n_generated = budget.n_generated
        self._model = model
        self._decoder = model.model.language_model
        self._vision = vision
        self._options = options
        self.counters = Counter[str]()

    @torch.inference_mode()
    def run(self, wave: Sequence[TrieNode]) -> list[tuple[TokenRequest, Result]]:
        """Return the results of the requests that end in the wave's nodes."""
        slots = WaveSlots(self.pool, wave, self._n_generated)
        try:
            return self._run(wave, slots)
        finally:
            slots.leave()

    def _run(self, wave: Sequence[TrieNode], slots: WaveSlots) -> list[tuple[TokenRequest, Result]]:
        requests = [node.request for node in wave if node.request is not None]
        hidden = run_layers(
            self._decoder,
            self._embed(wave),
            self._tensor(_rotary_positions(wave)),
            slots.attention,
            self._tensor(_output_positions(wave)) if requests else None,
        )
        self.counters["forwards"] += 1
        self.counters["tokens_prefilled"] += sum(node.size for node in wave)
        if hidden is None:
            return []
        readout = read_out(self._model, hidden, requests, self._options)
        answers = iter(self._generated(readout, slots, [node for node in wave if node.generates]))
        results = []
        for request, scores in zip(requests, readout.scores, strict=True):
            result = next(answers) if request.generate else Result()
            results.append((request, replace(result, scores=scores)))
        return results

    def _generated(self, readout: ReadOut, slots: WaveSlots, nodes: Sequence[TrieNode]) -> list[Result]:
        """Return an answer for each node that generates, decoding only those that no given answer determines."""
        unknown = [index for index, answer in enumerate(readout.answers) if answer is None]
        if not unknown:
            return [answer for answer in readout.answers if answer is not None]
        decoded = iter(decode(Rows(self, slots, nodes, unknown), readout.first[unknown], self._options))
        return [next(decoded) if answer is None else answer for answer in readout.answers]

    def _embed(self, wave: Sequence[TrieNode]) -> Tensor:
        ids = self._tensor(np.concatenate([part for node in wave for part in _node_ids(node)]))
        embeddings: Tensor = self._decoder.embed_tokens(ids)
        if digests := [digest for node in wave for digest in node.images]:
            # Features replace the placeholders, in the order of their tokens.
            embeddings[ids == self._model.config.image_token_id] = torch.cat(self._vision.features(digests))
        return embeddings

    def feed(self, ids: Tensor, nodes: Sequence[TrieNode], step: int, attention: PassAttention) -> Tensor:
        """Return the logits [B, n, V] after one further token `ids` [B, n], n alternatives a row."""
        rows, width = ids.shape
        flat, ends = ids.flatten(), torch.tensor([node.end for node in nodes], device=ids.device)
        hidden = run_layers(
            self._decoder,
            self._decoder.embed_tokens(flat),
            (ends + step)[None, :, None].expand(AXES, rows, width).flatten(1),
            attention,
            torch.arange(flat.numel(), device=flat.device),
        )
        self.counters["forwards"] += 1
        return _logits(self._model, hidden).view(rows, width, -1)

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self._model.device)


@dataclass
class Rows:
    """The wave's generating nodes that are decoded (`_decoding.WaveRows`); `alive` are their indices."""

    waves: Waves
    slots: WaveSlots
    nodes: Sequence[TrieNode]
    alive: list[int]

    def prompt_tokens(self, vocabulary: int) -> Tensor:
        """Return the mask of the tokens that occur in each row's prompt, bool [B, V]."""
        occurs = torch.zeros(len(self.alive), vocabulary, dtype=torch.bool)
        for row, index in zip(occurs, self.alive, strict=True):
            for part in self.nodes[index].path():
                row[torch.from_numpy(part.layout.ids)] = True
        return occurs.to(self.waves.pool.keys.device)

    def feed(self, ids: Tensor, step: int, visible: Tensor) -> Tensor:
        """Return the logits [B, n, V] after feeding `ids` [B, n] in parallel at one position.

        `visible` [B, n, generated columns + n] marks the generated columns that each of them sees.
        """
        nodes = [self.nodes[index] for index in self.alive]
        return self.waves.feed(ids, nodes, step, self.slots.step(self.alive, step, visible))

    def select(self, rows: Tensor) -> None:
        """Keep only these rows."""
        self.alive = [self.alive[row] for row in rows.tolist()]


def _logits(model: Any, hidden: Tensor | None) -> Tensor:
    """Return logits [..., V] in single precision."""
    return torch.as_tensor(model.lm_head(hidden)).float()


def _node_ids(node: TrieNode) -> list[Array]:
    answers = node.request.answers if node.request else ()
    branches = [token for answer in answers for token in answer[:-1]]
    return [node.layout.ids, np.asarray(branches, dtype=np.int64)] if branches else [node.layout.ids]


def _rotary_positions(wave: Sequence[TrieNode]) -> Array:
    """Return the rotary positions of a packed row [AXES, tokens]."""
    relative = [part for node in wave for part in (node.layout.positions, _branch_positions(node.branches))]
    starts = [start for node in wave for start in (node.start, node.end)]
    moved: Array = np.concatenate(relative, axis=1)
    moved += np.repeat(starts, [part.shape[1] for part in relative])
    return moved


@lru_cache(maxsize=4096)
def _branch_positions(branches: tuple[int, ...]) -> Array:
    """Return the positions of answer tokens after a prompt, relative to its end [AXES, answer tokens]."""
    ranges = [np.arange(count) for count in (0, *branches)]
    return np.broadcast_to(np.concatenate(ranges), (AXES, sum(branches)))


def _output_positions(wave: Sequence[TrieNode]) -> Array:
    """Return the positions, in the packed row, of the last prompt tokens and the answer tokens of requests."""
    positions, begin = [], 0
    for node in wave:
        end = begin + node.size + node.n_branches
        if node.request is not None:
            positions.append(np.arange(begin + node.size - 1, end))
        begin = end
    return np.concatenate(positions)


@dataclass(frozen=True)
class ReadOut:
    """Results for requests, read from the states of a wave.

    Attributes:
        scores: for each request its answers' token log-probabilities.
        first: for each request that generates the logits of its first token [requests, V].
        answers: for each of these the answer itself, if given answers contain it up to its end; else None.
    """

    scores: list[tuple[Scores, ...]]
    first: Tensor
    answers: list[Result | None]


def read_out(model: Any, hidden: Tensor, requests: Sequence[TokenRequest], options: DecodeOptions) -> ReadOut:
    """Return the token log-probabilities of the given answers, and the beginnings of generated answers.

    With a large vocabulary a line needs much memory, so lines are computed in blocks and reduced at once.

    The states `hidden` [n, H] are ordered by request: one after the prompt, then one after each fed answer token. The
    state after the prompt predicts an answer's first token, the state after a token the next one.
    """
    lines, tokens, begins = _positions(requests)
    block = max(1, VALUES_PER_BLOCK // model.lm_head.weight.shape[0])
    rows, targets, firsts = (torch.tensor(p, dtype=torch.long, device=hidden.device) for p in (lines, tokens, begins))
    values = torch.empty(len(rows), device=hidden.device)
    # Only in greedy search without a penalty is the next token the likeliest one.
    plain = options.num_beams == 1 and options.repetition_penalty == 1
    first, best, likeliest = [], list[int](), list[float]()
    for start in range(0, len(hidden), block):
        logits = _logits(model, hidden[start : start + block])
        log_probs = logits.log_softmax(-1)
        inside = (rows >= start) & (rows < start + block)
        values[inside] = log_probs[rows[inside] - start, targets[inside]]
        first.append(logits[firsts[(firsts >= start) & (firsts < start + block)] - start])
        if plain:
            top = logits.argmax(-1)
            best += top.tolist()
            likeliest += log_probs.gather(-1, top[:, None])[:, 0].tolist()
    scored = iter(values.tolist())
    scores = [tuple(tuple(next(scored) for _ in answer) for answer in request.answers) for request in requests]
    generating = [request for request in requests if request.generate]
    pairs = zip(generating, begins, strict=True)
    answers = [_followed(request, line, best, likeliest, options) if plain else None for request, line in pairs]
    return ReadOut(scores, torch.cat(first), answers)


def _followed(
    request: TokenRequest, first: int, best: Sequence[int], likeliest: Sequence[float], options: DecodeOptions
) -> Result | None:
    """Return the greedy answer of a request if each of its tokens but the last was fed as part of a given answer.

    Args:
        request: a request that generates.
        first: its first line, followed by the lines after its answers' fed tokens.
        best: the likeliest token of each line.
        likeliest: its log-probability.
        options: how answers end.
    """
    lines: dict[Answer, int] = {(): first}
    begin = first + 1
    for answer in request.answers:
        lines |= {answer[:count]: begin + count - 1 for count in range(1, len(answer))}
        begin += len(answer) - 1
    tokens: Answer = ()
    log_probs: Scores = ()
    while tokens in lines:
        line = lines[tokens]
        tokens, log_probs = (*tokens, best[line]), (*log_probs, likeliest[line])
        if best[line] in options.eos or len(tokens) == options.max_new_tokens:
            return Result(tokens, log_probs)
    return None


def _positions(requests: Sequence[TokenRequest]) -> tuple[list[int], list[int], list[int]]:
    """Return the lines and the tokens of given answers that they predict, and the first lines of generated answers."""
    lines, tokens, begins = list[int](), list[int](), list[int]()
    first = 0
    for request in requests:
        if request.generate:
            begins.append(first)
        branch = first + 1
        for answer in request.answers:
            lines += [first, *range(branch, branch + len(answer) - 1)]
            tokens += answer
            branch += len(answer) - 1
        first = branch
    return lines, tokens, begins
