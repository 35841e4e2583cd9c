"""Greedy and beam search over a batch of prefilled rows, by the rules of transformers' `generate`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lever_pipe.lvlms._requests import Result
from lever_pipe.lvlms.protocol import DecodeOptions

NEVER = -1.0e9  # transformers' score of a hypothesis that must not win


class BeamRows(Protocol):
    """Prompts with several hypotheses of an answer in each row."""

    def prompt_tokens(self, vocabulary: int) -> Tensor:
        """Return the mask of the tokens that occur in each row's prompt, bool [B, V]."""
        ...

    def feed(self, ids: Tensor, step: int, visible: Tensor) -> Tensor:
        """Return the logits [B, n, V] after `ids` [B, n]; `visible` [B, n, fed] marks the ancestors of each token."""
        ...


class WaveRows(BeamRows, Protocol):
    """Prompts that may be removed from the batch."""

    def select(self, rows: Tensor) -> None:
        """Keep only these rows."""
        ...


def decode(rows: WaveRows, first: Tensor, options: DecodeOptions) -> list[Result]:
    """Return an answer for each row, given the logits of its first token [B, V]."""
    return _greedy(rows, first, options) if options.num_beams == 1 else beam_search(rows, first, options)


def _seen(rows: BeamRows, first: Tensor, options: DecodeOptions) -> Tensor | None:
    return rows.prompt_tokens(first.shape[-1]) if options.repetition_penalty != 1 else None


def _searched(scores: Tensor, seen: Tensor | None, options: DecodeOptions) -> Tensor:
    """Return the scores that the search compares: penalised for tokens of prompt or answer, -inf for excluded tokens.

    A positive score is divided by the penalty, a negative one multiplied (source: Keskar 2019). `generate` penalises
    logits in greedy search and log-probabilities in beam search.
    """
    if seen is not None:
        penalty = options.repetition_penalty
        scores = torch.where(seen, torch.where(scores < 0, scores * penalty, scores / penalty), scores)
    never = torch.tensor(options.never, dtype=torch.long, device=scores.device)
    return scores.index_fill(-1, never, -torch.inf) if options.never else scores


def _greedy(rows: WaveRows, first: Tensor, options: DecodeOptions) -> list[Result]:
    seen = _seen(rows, first, options)
    shape = (first.shape[0], options.max_new_tokens)
    tokens = torch.full(shape, -1, dtype=torch.long, device=first.device)
    scores = torch.zeros(shape, device=first.device)
    eos = torch.tensor(options.eos, device=first.device)
    active = torch.arange(shape[0], device=first.device)
    logits = first
    for step in range(options.max_new_tokens):
        likeliest = _searched(logits, seen, options).argmax(-1)
        tokens[active, step] = likeliest
        scores[active, step] = logits.log_softmax(-1).gather(-1, likeliest[:, None])[:, 0]
        going = ~torch.isin(likeliest, eos)
        if step + 1 == options.max_new_tokens or not going.any():
            break
        if seen is not None:
            seen.scatter_(-1, likeliest[:, None], True)
        # Ended rows are removed only once they are half of the batch: copying the buffer for fewer costs more time.
        if 2 * int(going.sum()) <= going.numel():
            keep = going.nonzero()[:, 0]
            rows.select(keep)
            active, likeliest = active[keep], likeliest[keep]
            seen = None if seen is None else seen[keep]
        visible = torch.ones(likeliest.numel(), 1, step + 1, dtype=torch.bool, device=first.device)
        logits = rows.feed(likeliest[:, None], step, visible)[:, 0]
    return _cut(tokens, scores, None, options)


@dataclass
class _Beams:
    """Hypotheses [B, beams, ...], best first."""

    tokens: Tensor
    log_probs: Tensor
    scores: Tensor  # running: plain sums; finished: after the length penalty
    ended: Tensor
    columns: Tensor  # generated columns of the buffer that contain a hypothesis's own tokens

    def take(self, index: Tensor) -> _Beams:
        """Return the hypotheses of `index` [B, m]."""

        def pick(tensor: Tensor) -> Tensor:
            if tensor.ndim == 2:
                return tensor.gather(1, index)
            return tensor.gather(1, index[:, :, None].expand(-1, -1, tensor.shape[2]))

        return _Beams(*map(pick, (self.tokens, self.log_probs, self.scores, self.ended, self.columns)))

    def joined(self, other: _Beams) -> _Beams:
        """Return the hypotheses of both."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return _Beams(*(torch.cat(pair, dim=1) for pair in pairs))


def _empty(rows: int, beams: int, options: DecodeOptions, score: float, device: torch.device) -> _Beams:
    steps = options.max_new_tokens
    return _Beams(
        tokens=torch.full((rows, beams, steps), -1, dtype=torch.long, device=device),
        log_probs=torch.zeros(rows, beams, steps, device=device),
        scores=torch.full((rows, beams), score, device=device),
        ended=torch.zeros(rows, beams, dtype=torch.bool, device=device),
        columns=torch.zeros(rows, beams, steps * options.num_beams, dtype=torch.bool, device=device),
    )


def beam_search(rows: BeamRows, first: Tensor, options: DecodeOptions) -> list[Result]:
    """Run a beam search in which the beams of a prompt share their row's buffer.

    A beam's mask marks the columns of its own ancestors, so keys and values are neither repeated nor reordered.
    """
    seen = _seen(rows, first, options)
    n_rows, beams, device = first.shape[0], options.num_beams, first.device
    running = _empty(n_rows, 1, options, 0.0, device)
    finished = _empty(n_rows, beams, options, NEVER, device)
    improvable = torch.ones(n_rows, 1, dtype=torch.bool, device=device)
    log_probs = first[:, None].log_softmax(-1)
    for step in range(options.max_new_tokens):
        last = step + 1 == options.max_new_tokens
        candidates = _extend(running, log_probs, seen, step, options)
        running = _best_running(candidates, beams)
        norm = float(step + 1) ** options.length_penalty
        finished = _finish(finished, candidates, improvable, norm)
        # A row stays open while its best running beam may still beat its worst finished hypothesis.
        worst = torch.where(finished.ended, finished.scores.min(1, keepdim=True).values, NEVER)
        improvable = improvable & (running.scores[:, :1] / norm > worst).any(1, keepdim=True)
        if last or not improvable.any() or candidates.ended.all():
            break
        width = (step + 1) * beams
        columns = torch.arange(step * beams, width, device=device)
        running.columns[:, torch.arange(beams, device=device), columns] = True
        log_probs = rows.feed(running.tokens[:, :, step], step, running.columns[:, :, :width]).log_softmax(-1)
    best = finished.take(torch.zeros(n_rows, 1, dtype=torch.long, device=device))
    return _cut(best.tokens[:, 0], best.log_probs[:, 0], best.scores[:, 0], options)


def _extend(running: _Beams, log_probs: Tensor, seen: Tensor | None, step: int, options: DecodeOptions) -> _Beams:
    """Return the best continuations: enough for `num_beams` to continue even if all others end."""
    vocabulary = log_probs.shape[-1]
    if seen is not None:
        seen = seen[:, None].repeat(1, log_probs.shape[1], 1)
        seen.scatter_(-1, running.tokens[:, :, :step], True)
    ranked = _searched(log_probs, seen, options)
    total = (ranked + running.scores[:, :, None]).flatten(1)
    scores, flat = total.topk(max(2, 1 + len(options.eos)) * options.num_beams)
    candidates = running.take(flat // vocabulary)
    token = flat % vocabulary
    candidates.scores = scores
    candidates.tokens[:, :, step] = token
    candidates.log_probs[:, :, step] = log_probs.flatten(1).gather(1, flat)
    candidates.ended = torch.isin(token, torch.tensor(options.eos, device=token.device))
    # The length limit ends all hypotheses.
    if step + 1 == options.max_new_tokens:
        candidates.ended = torch.ones_like(candidates.ended)
    return candidates


def _best_running(candidates: _Beams, beams: int) -> _Beams:
    scores, index = (candidates.scores + candidates.ended.float() * NEVER).topk(beams)
    running = candidates.take(index)
    running.scores = scores
    return running


def _finish(finished: _Beams, candidates: _Beams, improvable: Tensor, norm: float) -> _Beams:
    """Return the best finished hypotheses; only the first `beams` candidates may finish."""
    beams = finished.scores.shape[1]
    eligible = candidates.ended.clone()
    eligible[:, beams:] = False
    scores = candidates.scores / norm
    scores = scores + (~improvable).float() * NEVER + (~eligible).float() * NEVER
    ending = _Beams(candidates.tokens, candidates.log_probs, scores, eligible, candidates.columns)
    both = finished.joined(ending)
    return both.take(both.scores.topk(beams).indices)


def _cut(tokens: Tensor, log_probs: Tensor, scores: Tensor | None, options: DecodeOptions) -> list[Result]:
    """Return each row up to its first end-of-turn token; -1 marks steps that were not computed."""
    beam_scores = [None] * tokens.shape[0] if scores is None else scores.tolist()
    decoded = []
    for ids, values, score in zip(tokens.tolist(), log_probs.tolist(), beam_scores, strict=True):
        ends = (i + 1 for i, token in enumerate(ids) if token in options.eos)
        length = next(ends, len(ids) - ids.count(-1))
        decoded.append(Result(tuple(ids[:length]), tuple(values[:length]), score))
    return decoded
