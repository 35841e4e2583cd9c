"""Many dialogues that one model continues together; no token is ever computed twice.

Keys and values stay cached between turns. A row of the cache may have holes, where the row waited for others or had
less to read: they are masked, and closed before the next turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from lever_pipe.agent.sampling import draw_tokens, likeliest_tokens


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
    pad_id: int
    temperature: float
    greedy: bool


class GenerationCounts(Protocol):
    """Where work is counted."""

    forwards: int
    prefill_tokens: int
    decode_tokens: int


class CachedRows:
    """The cache of B dialogues."""

    def __init__(self, model: Any, n_rows: int) -> None:
        from transformers import DynamicCache

        self._model = model
        self._cache = DynamicCache()
        self.device = model.device
        self._taken_BS = torch.zeros(n_rows, 0, dtype=torch.int64, device=self.device)
        self._length_B1 = torch.zeros(n_rows, 1, dtype=torch.int64, device=self.device)

    @torch.inference_mode()
    def read(self, ids_BW: Tensor, taken_BW: Tensor) -> Tensor:
        """Append a block to the cache and return the float32 logits [B, V] behind its last column.

        Args:
            ids_BW: int64 [B, W]; a row's tokens stand at the right end.
            taken_BW: int64 [B, W], 1 where there is a token, 0 where the row has a hole.
        """
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
        return logits_BV

    @torch.inference_mode()
    def keep(self, rows: Sequence[int]) -> None:
        """Drop every other row, and close the holes that all kept rows can do without."""
        index = torch.tensor(rows, device=self.device)
        taken_BS = self._taken_BS[index]
        self._length_B1 = self._length_B1[index]
        n_places = int(self._length_B1.max())
        # Tokens first, in their order.
        place_BS = taken_BS.argsort(dim=1, descending=True, stable=True)[:, :n_places]
        self._taken_BS = taken_BS.gather(1, place_BS)
        for layer in self._cache.layers:
            layer.keys = _gathered(layer.keys, index, place_BS)
            layer.values = _gathered(layer.values, index, place_BS)


def speak(rows: CachedRows, readings: Sequence[Reading], decoding: Decoding, counts: GenerationCounts) -> list[Sampled]:
    """Let every row read what it has not read yet and say one turn.

    A turn ends with its first end token or at its limit. The last token said is not read: it is the first that the
    row's next reading must hold.
    """
    said = [Sampled([], []) for _ in readings]
    logits_BV = rows.read(*_block([reading.unread for reading in readings], decoding.pad_id, rows.device))
    counts.forwards += 1
    counts.prefill_tokens += sum(len(reading.unread) for reading in readings)
    active = list(range(len(readings)))
    while True:
        tokens_B, log_probs_B = _choose(logits_BV, readings, active, decoding)
        tokens, log_probs = tokens_B.tolist(), log_probs_B.tolist()
        for row in active:
            said[row].tokens.append(tokens[row])
            said[row].log_probs.append(log_probs[row])
        active = [r for r in active if tokens[r] not in decoding.end_ids and len(said[r].tokens) < readings[r].limit]
        if not active:
            return said
        taken_B = torch.zeros(len(readings), dtype=torch.int64)
        taken_B[active] = 1
        logits_BV = rows.read(tokens_B[:, None], taken_B[:, None].to(rows.device))
        counts.forwards += 1
        counts.decode_tokens += len(active)


def _choose(
    logits_BV: Tensor, readings: Sequence[Reading], active: Sequence[int], decoding: Decoding
) -> tuple[Tensor, Tensor]:
    """Return a token and its log-probability a row; those of rows that wait mean nothing."""
    if decoding.greedy:
        return likeliest_tokens(logits_BV)
    numbers = [0.0] * len(readings)
    for row in active:
        numbers[row] = next(readings[row].uniforms)
    uniforms_B = torch.tensor(numbers, dtype=torch.float64, device=logits_BV.device)
    return draw_tokens(logits_BV, uniforms_B, temperature=decoding.temperature)


def _block(texts: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return ids and taken places, int64 [B, W]; short texts have their holes on the left."""
    width = max(map(len, texts))
    ids = [[pad_id] * (width - len(text)) + list(text) for text in texts]
    taken = [[0] * (width - len(text)) + [1] * len(text) for text in texts]
    return torch.tensor(ids, device=device), torch.tensor(taken, device=device)


def _gathered(states: Tensor, index: Tensor, place_BS: Tensor) -> Tensor:
    """Return the chosen rows and places of cached states [B, H, S, D]."""
    chosen = states[index]
    return chosen.gather(2, place_BS[:, None, :, None].expand(-1, chosen.shape[1], -1, chosen.shape[3]))
