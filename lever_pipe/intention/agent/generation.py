"""Many dialogues that one model continues together; no token is ever computed twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from lever_pipe.intention.agent.memory import Rows
from lever_pipe.intention.agent.sampling import draw_tokens, likeliest_tokens


class Sampled(NamedTuple):
    """What one row said in one turn."""

    tokens: list[int]
    log_probs: list[float]
    """At the sampling temperature; greedy: at temperature 1."""


class Reading(NamedTuple):
    """What a row is given before it speaks."""

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


class GenerationCounts(Protocol):
    """Where work is counted."""

    forwards: int
    prefill_tokens: int
    decode_tokens: int


def speak(rows: Rows, readings: Sequence[Reading], decoding: Decoding, counts: GenerationCounts) -> list[Sampled]:
    """Let every row read what it has not read yet and say one turn.

    A turn ends with its first end token or at its limit. The last token said is not read: it is the first that the
    row's next reading must hold.
    """
    said = [Sampled([], []) for _ in readings]
    active = list(range(len(readings)))
    unread = [reading.unread for reading in readings]
    counts.prefill_tokens += sum(map(len, unread))
    while True:
        logits_BV = rows.read(active, unread)
        counts.forwards += 1
        tokens, log_probs = _choose(logits_BV, [readings[row].uniforms for row in active], decoding)
        for row, token, log_prob in zip(active, tokens, log_probs, strict=True):
            said[row].tokens.append(token)
            said[row].log_probs.append(log_prob)
        active = [
            row
            for row, token in zip(active, tokens, strict=True)
            if token not in decoding.end_ids and len(said[row].tokens) < readings[row].limit
        ]
        if not active:
            return said
        unread = [said[row].tokens[-1:] for row in active]
        counts.decode_tokens += len(active)


def _choose(
    logits_BV: Tensor, uniforms: Sequence[Iterator[float]], decoding: Decoding
) -> tuple[list[int], list[float]]:
    """Return a token and its log-probability a row."""
    if decoding.greedy:
        tokens_B, log_probs_B = likeliest_tokens(logits_BV)
    else:
        uniforms_B = torch.tensor([next(each) for each in uniforms], dtype=torch.float64, device=logits_BV.device)
        tokens_B, log_probs_B = draw_tokens(logits_BV, uniforms_B, temperature=decoding.temperature)
    return tokens_B.tolist(), log_probs_B.tolist()
