"""Answers to many prompts at once: batched, images shared, given answers scored in the prompt's own pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from lever_pipe.lvlms import _positions
from lever_pipe.lvlms._batch import Batch, Prompt, Request, Row, Segment, assemble, cut_waves, make_row
from lever_pipe.lvlms._decoding import Decoded, DecodeOptions, decode
from lever_pipe.lvlms._flop import TextFlop
from lever_pipe.lvlms._forward import KeyValueBuffer, run_layers
from lever_pipe.lvlms._positions import Layout
from lever_pipe.lvlms._vision import VisionStore

Scores = tuple[float, ...]


@dataclass(frozen=True)
class Result:
    """What the model says to one request.

    Attributes:
        tokens: the generated answer, the end of the turn included if it came; empty if none was asked for.
        token_log_probs: natural log-probability of each generated token.
        beam_score: the beam's score after the length penalty; None for greedy.
        scores: for each given answer the log-probability of each of its tokens.
    """

    tokens: tuple[int, ...]
    token_log_probs: Scores
    beam_score: float | None
    scores: tuple[Scores, ...]


class Engine:
    """Runs requests through a `Qwen2_5_VLForConditionalGeneration` and leaves the model as it was.

    Args:
        model: in evaluation mode, with SDPA attention.
        vision: its image features.
        decode: how answers are searched.
        wave_tokens: padded tokens of one forward.
        counters: receives the counts named in `protocol.COUNTERS` that concern the language model.
    """

    def __init__(
        self, model: Any, vision: VisionStore, *, decode: DecodeOptions, wave_tokens: int, counters: Counter[str]
    ) -> None:
        self._model = model
        self.text = model.model.language_model
        self._vision = vision
        self._decode = decode
        self._wave_tokens = wave_tokens
        self._counters = counters
        self._layouts: dict[Segment, Layout] = {}
        self._flop = TextFlop(model)

    def run(
        self, requests: Sequence[Request], on_result: Callable[[Request, Result], None] | None = None
    ) -> list[Result]:
        """Return a result a request, in order; equal prompts are computed once.

        Args:
            requests: in any order; the results do not depend on it.
            on_result: called with every distinct prompt as soon as it is done, all asked answers in one request.
        """
        merged = merge_requests(requests)
        self._vision.prepare(digest for request in merged for digest in request.prompt.images)
        rows = [make_row(request, tuple(map(self._layout, request.prompt.segments))) for request in merged]
        self._count_prompts(rows)
        done: dict[Prompt, tuple[Result, dict[tuple[int, ...], Scores]]] = {}
        for wave in cut_waves(rows, self._wave_tokens):
            for row, result in zip(wave, self._run_wave(wave), strict=True):
                answers = row.request.answers
                done[row.request.prompt] = result, dict(zip(answers, result.scores, strict=True))
                if on_result is not None:
                    on_result(row.request, result)
        return [_share_of(request, *done[request.prompt]) for request in requests]

    def _layout(self, segment: Segment) -> Layout:
        if segment not in self._layouts:
            self._layouts[segment] = _positions.segment_layout(
                segment.ids,
                [self._vision.grid(digest) for digest in segment.images],
                image_token=self._model.config.image_token_id,
                merge=self._model.config.vision_config.spatial_merge_size,
            )
        return self._layouts[segment]

    @torch.inference_mode()
    def _run_wave(self, wave: list[Row]) -> list[Result]:
        batch = assemble(wave, image_token=self._model.config.image_token_id, device=self._model.device)
        buffer = self._buffer(batch) if wave[0].request.generate else None
        hidden = run_layers(
            self.text,
            self._embed(batch, wave),
            batch.positions,
            batch.mask,
            buffer=buffer,
            tail=batch.ids.shape[1] - batch.n_prompt + 1,
        )
        log_probs = self._wanted_log_probs(hidden, wave)
        self._count_wave(wave, batch)
        scores = _answer_scores(log_probs, wave)
        if buffer is None:
            return [Result((), (), None, row_scores) for row_scores in scores]
        rows = _PrefilledRows(self, batch, buffer, wave)
        decoded = decode(rows, log_probs[: len(wave)], self._decode)
        return [_result(answer, row_scores) for answer, row_scores in zip(decoded, scores, strict=True)]

    def _embed(self, batch: Batch, wave: list[Row]) -> Tensor:
        embeddings: Tensor = self.text.embed_tokens(batch.ids)
        digests = [digest for row in wave for digest in row.request.prompt.images]
        if digests:
            embeddings[batch.images] = torch.cat(self._vision.features(digests))
        return embeddings

    def _buffer(self, batch: Batch) -> KeyValueBuffer:
        spare = (self._decode.max_new_tokens - 1) * self._decode.num_beams
        rows, columns = batch.ids.shape
        return KeyValueBuffer.allocate(
            self.text.config, rows=rows, columns=columns + spare, like=self.text.embed_tokens.weight
        )

    def _wanted_log_probs(self, hidden: Tensor, wave: list[Row]) -> Tensor:
        """Return [B + branch tokens, V]: behind each prompt, then behind each fed answer token, row by row."""
        rows = [*range(len(wave))]
        columns = [0] * len(wave)
        for index, row in enumerate(wave):
            rows += [index] * row.branch_length
            columns += range(1, row.branch_length + 1)
        return self.log_probs(hidden[rows, columns])

    def log_probs(self, hidden: Tensor) -> Tensor:
        """Return natural log-probabilities [..., V] in single precision."""
        return torch.log_softmax(self._model.lm_head(hidden).float(), dim=-1)

    def count_step(self, contexts: Sequence[int], width: int) -> None:
        """Count one decoding forward: `width` tokens a row behind `contexts` real tokens."""
        self._counters["forwards"] += 1
        self._counters["flop"] += sum(width * self._flop(tokens=1, past=context, logits=1) for context in contexts)

    def _count_wave(self, wave: list[Row], batch: Batch) -> None:
        self._counters["forwards"] += 1
        self._counters["tokens_prefilled"] += sum(row.length for row in wave)
        self._counters["tokens_padded"] += batch.ids.numel() - sum(row.width for row in wave)
        for row in wave:
            fed = self._flop(tokens=row.length, past=0, logits=1 + row.branch_length)
            branches = (self._flop(tokens=len(answer) - 1, past=row.length, logits=0) for answer in row.request.answers)
            self._counters["flop"] += fed + sum(branches)

    def _count_prompts(self, rows: list[Row]) -> None:
        self._counters["prompt_tokens"] += sum(row.length for row in rows)
        before: tuple[Segment, ...] = ()
        for row in sorted(rows, key=lambda row: row.request.prompt.key):
            segments = row.request.prompt.segments
            same = (one == other for one, other in zip(before, segments, strict=False))
            shared = sum(accumulate(same, lambda a, b: a and b))
            self._counters["trie_tokens_distinct"] += sum(layout.ids.size for layout in row.layouts[shared:])
            before = segments


class _PrefilledRows:
    """The rows of a wave while they are decoded."""

    def __init__(self, engine: Engine, batch: Batch, buffer: KeyValueBuffer, wave: list[Row]) -> None:
        self._engine = engine
        self._buffer = buffer
        self._prompt = batch.prompt
        self._ends = batch.ends
        self._lengths = [row.length for row in wave]

    def feed(self, ids: Tensor, step: int, visible: Tensor) -> Tensor:
        rows, width = ids.shape
        prompt = self._prompt[:, None].expand(rows, width, -1)
        positions = _positions.decode_positions(self._ends, step)
        hidden = run_layers(
            self._engine.text,
            self._engine.text.embed_tokens(ids),
            positions[None, :, None].expand(3, rows, width),
            torch.cat([prompt, visible], dim=-1)[:, None],
            buffer=self._buffer,
            tail=width,
        )
        self._engine.count_step([length + step for length in self._lengths], width)
        return self._engine.log_probs(hidden)

    def select(self, rows: Tensor) -> None:
        self._buffer = self._buffer.rows(rows)
        self._prompt, self._ends = self._prompt[rows], self._ends[rows]
        self._lengths = [self._lengths[row] for row in rows.tolist()]


def merge_requests(requests: Sequence[Request]) -> list[Request]:
    """Return one request a distinct prompt: the union of the answers in sorted order, generated if anyone asks."""
    answers: dict[Prompt, set[tuple[int, ...]]] = {}
    generate: dict[Prompt, bool] = {}
    for request in requests:
        answers.setdefault(request.prompt, set()).update(request.answers)
        generate[request.prompt] = generate.get(request.prompt, False) or request.generate
    return [Request(prompt, tuple(sorted(answers[prompt])), generate[prompt]) for prompt in answers]


def _answer_scores(log_probs: Tensor, wave: list[Row]) -> list[tuple[Scores, ...]]:
    """Return the token log-probabilities of each row's given answers.

    An answer's first token is predicted behind the prompt, the others behind the branch token before them.
    """
    lines: list[int] = []
    tokens: list[int] = []
    branch = len(wave)
    for index, row in enumerate(wave):
        for answer in row.request.answers:
            lines += [index, *range(branch, branch + len(answer) - 1)]
            tokens += answer
            branch += len(answer) - 1
    values = iter(log_probs[lines, tokens].tolist())
    return [tuple(tuple(next(values) for _ in answer) for answer in row.request.answers) for row in wave]


def _result(decoded: Decoded, scores: tuple[Scores, ...]) -> Result:
    return Result(decoded.tokens, decoded.log_probs, decoded.beam_score, scores)


def _share_of(request: Request, result: Result, scores: dict[tuple[int, ...], Scores]) -> Result:
    """Return what one of several requests for the same prompt asked for."""
    asked = tuple(scores[answer] for answer in request.answers)
    if not request.generate:
        return Result((), (), None, asked)
    return Result(result.tokens, result.token_log_probs, result.beam_score, asked)
