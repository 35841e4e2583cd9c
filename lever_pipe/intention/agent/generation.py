"""Many dialogues that one model continues together; no token is ever computed twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lever_pipe.intention.agent.memory import Rows

UNIFORMS_PER_DRAW = 64


def uniforms(stream: np.random.Generator) -> Iterator[float]:
    """Yield the uniform numbers of a stream one by one; drawing them in blocks changes none of them."""
    while True:
        yield from stream.random(UNIFORMS_PER_DRAW).tolist()


def draw_tokens(logits_BV: Tensor, uniforms_B: Tensor, *, temperature: float) -> tuple[Tensor, Tensor]:
    """Return tokens drawn at a temperature, int64 [B], and their log-probabilities at it, float64 [B].

    A token is drawn where its row's distribution function passes the row's uniform number, so that a row's draw
    depends on nothing but its own numbers.

    Args:
        logits_BV: float [B, V].
        uniforms_B: float64 [B] in [0, 1).
        temperature: above 0.
    """
    log_probs_BV = (logits_BV.double() / temperature).log_softmax(dim=-1)
    cumulative_BV = log_probs_BV.exp().cumsum(dim=-1)
    total_B1 = cumulative_BV[:, -1:]
    # Rounding must not carry a target to the end, behind tokens of probability 0.
    target_B1 = torch.minimum(uniforms_B[:, None] * total_B1, torch.nextafter(total_B1, torch.zeros_like(total_B1)))
    return _with_log_probs(torch.searchsorted(cumulative_BV, target_B1, right=True), log_probs_BV)


def likeliest_tokens(logits_BV: Tensor) -> tuple[Tensor, Tensor]:
    """Return the most probable tokens, int64 [B], and their log-probabilities at temperature 1, float64 [B]."""
    return _with_log_probs(logits_BV.argmax(dim=-1, keepdim=True), logits_BV.double().log_softmax(dim=-1))


def _with_log_probs(tokens_B1: Tensor, log_probs_BV: Tensor) -> tuple[Tensor, Tensor]:
    return tokens_B1.squeeze(1), log_probs_BV.gather(1, tokens_B1).squeeze(1)


class Sampled(NamedTuple):
    """What one row said in one turn."""

    tokens: list[int]
    log_probs: list[float]
    """At the sampling temperature; greedy: at temperature 1."""


class Speaker(NamedTuple):
    """A row that is about to speak."""

    unread: Sequence[int]
    """Its tokens that are not cached yet; at least one."""
    limit: int
    """The most tokens that it may say; at least one."""
    uniforms: Iterator[float]
    """One is used a token; none where decoding is greedy."""


@dataclass(frozen=True)
class Decoding:
    """How tokens are chosen."""

    end_ids: frozenset[int]
    temperature: float
    greedy: bool

    def choose(self, logits_BV: Tensor, uniforms: Sequence[Iterator[float]]) -> tuple[list[int], list[float]]:
        """Return a token and its log-probability a row."""
        if self.greedy:
            tokens_B, log_probs_B = likeliest_tokens(logits_BV)
        else:
            uniforms_B = torch.tensor([next(each) for each in uniforms], dtype=torch.float64, device=logits_BV.device)
            tokens_B, log_probs_B = draw_tokens(logits_BV, uniforms_B, temperature=self.temperature)
        return tokens_B.tolist(), log_probs_B.tolist()


@dataclass
class GenerationCounts:
    """Work of a model."""

    forwards: int = 0
    prefill_tokens: int = 0
    """Tokens of prompts, feedback and ends of turns, of each dialogue: also where equal prompts are read once."""
    decode_tokens: int = 0
    """Sampled tokens that were read one by one."""


def speak(rows: Rows, speakers: Sequence[Speaker], decoding: Decoding, counts: GenerationCounts) -> list[Sampled]:
    """Let every row read what it has not read yet and say one turn.

    A turn ends with its first end token or at its limit. The last token said is not read: it is the first that the row
    must read before its next turn.
    """
    said = [Sampled([], []) for _ in speakers]
    active = list(range(len(speakers)))
    unread = [speaker.unread for speaker in speakers]
    counts.prefill_tokens += sum(map(len, unread))
    while True:
        logits_BV = rows.read(active, unread)
        counts.forwards += 1
        tokens, log_probs = decoding.choose(logits_BV, [speakers[row].uniforms for row in active])
        for row, token, log_prob in zip(active, tokens, log_probs, strict=True):
            said[row].tokens.append(token)
            said[row].log_probs.append(log_prob)
        active = [
            row
            for row, token in zip(active, tokens, strict=True)
            if token not in decoding.end_ids and len(said[row].tokens) < speakers[row].limit
        ]
        if not active:
            return said
        unread = [said[row].tokens[-1:] for row in active]
        counts.decode_tokens += len(active)
