"""What is read out of a wave of the plan, once its layers have run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lever_pipe.lvlms._decoding import Decoded, DecodeOptions
from lever_pipe.lvlms._layers import LanguageModel
from lever_pipe.lvlms._planner import TrieNode
from lever_pipe.lvlms._requests import Answer, Result, Scores, TokenRequest

VALUES_PER_BLOCK = 2**27  # log-probabilities at one time: half a gigabyte


def with_requests(wave: Sequence[TrieNode]) -> list[tuple[TrieNode, TokenRequest]]:
    """Return the nodes in which a request ends."""
    return [(node, node.request) for node in wave if node.request is not None]


def shown(nodes: Sequence[TrieNode], vocabulary: int, device: torch.device) -> Tensor:
    """Return which tokens stand in the prompts that end in the nodes, bool [nodes, V]."""
    found = torch.zeros(len(nodes), vocabulary, dtype=torch.bool)
    for row, node in zip(found, nodes, strict=True):
        for part in node.path():
            row[torch.from_numpy(part.layout.ids)] = True
    return found.to(device)


@dataclass(frozen=True)
class ReadOut:
    """What the states of a wave say of its requests.

    Attributes:
        scores: for each request its answers' token log-probabilities.
        first: for each request that generates the logits of its first token [requests, V].
        known: for each of these the answer itself, where given answers go along with it up to its end; else None.
    """

    scores: list[tuple[Scores, ...]]
    first: Tensor
    known: list[Decoded | None]


def read_out(language: LanguageModel, hidden: Tensor, asked: Sequence[TokenRequest], options: DecodeOptions) -> ReadOut:
    """Return the token log-probabilities of the given answers, and how generated answers begin.

    A large vocabulary makes a line dear, so the lines are made in blocks and only what is asked of them is kept.

    Args:
        language: reads the states.
        hidden: states [n, H]: request by request one behind the prompt, then one behind each fed answer token. An
            answer's first token is predicted behind the prompt, the others behind the token before them.
        asked: the requests.
        options: how answers are searched.
    """
    places = _places(asked)
    block = max(1, VALUES_PER_BLOCK // language.vocabulary)
    lines, tokens, firsts = (torch.tensor(part, dtype=torch.long, device=hidden.device) for part in places)
    values = torch.empty(len(lines), device=hidden.device)
    plain = options.num_beams == 1 and options.repetition_penalty == 1
    begins, best, likeliest = [], list[int](), list[float]()
    for start in range(0, len(hidden), block):
        logits = language.logits(hidden[start : start + block])
        log_probs = logits.log_softmax(-1)
        inside = (lines >= start) & (lines < start + block)
        values[inside] = log_probs[lines[inside] - start, tokens[inside]]
        begins.append(logits[firsts[(firsts >= start) & (firsts < start + block)] - start])
        if plain:
            top = logits.argmax(-1)
            best += top.tolist()
            likeliest += log_probs.gather(-1, top[:, None])[:, 0].tolist()
    found = iter(values.tolist())
    scores = [tuple(tuple(next(found) for _ in answer) for answer in request.answers) for request in asked]
    generating = [request for request in asked if request.generate]
    pairs = zip(generating, places.begins, strict=True)
    known = [_followed(request, first, best, likeliest, options) if plain else None for request, first in pairs]
    return ReadOut(scores, torch.cat(begins), known)


def _followed(
    request: TokenRequest, first: int, best: Sequence[int], likeliest: Sequence[float], options: DecodeOptions
) -> Decoded | None:
    """Return the greedy answer of a request if each of its tokens but the last was fed as part of a given answer.

    Args:
        request: generates.
        first: its first line; those behind its answers' fed tokens follow.
        best: the likeliest token of each line.
        likeliest: its log-probability.
        options: how answers end.
    """
    lines: dict[Answer, int] = {(): first}
    behind = first + 1
    for answer in request.answers:
        lines |= {answer[:count]: behind + count - 1 for count in range(1, len(answer))}
        behind += len(answer) - 1
    tokens: Answer = ()
    log_probs: Scores = ()
    while tokens in lines:
        line = lines[tokens]
        tokens, log_probs = (*tokens, best[line]), (*log_probs, likeliest[line])
        if best[line] in options.eos or len(tokens) == options.max_new_tokens:
            return Decoded(tokens, log_probs, None)
    return None


class _Places(NamedTuple):
    """Which line predicts which token of a given answer; and the lines with which generated answers begin, rising."""

    lines: list[int]
    tokens: list[int]
    begins: list[int]


def _places(asked: Sequence[TokenRequest]) -> _Places:
    places = _Places([], [], [])
    first = 0
    for request in asked:
        if request.generate:
            places.begins.append(first)
        branch = first + 1
        for answer in request.answers:
            places.lines.extend([first, *range(branch, branch + len(answer) - 1)])
            places.tokens.extend(answer)
            branch += len(answer) - 1
        first = branch
    return places


def generated(read: ReadOut, decode: Callable[[list[int], Tensor], list[Decoded]]) -> Iterator[Decoded]:
    """Yield an answer for each request that generates, decoding those that no given answer tells.

    Args:
        read: of the wave.
        decode: from the places, among the requests that generate, of those to decode, and the logits of their first
            tokens, to their answers.
    """
    unknown = [place for place, answer in enumerate(read.known) if answer is None]
    decoded = iter(decode(unknown, read.first[unknown]) if unknown else ())
    for answer in read.known:
        yield next(decoded) if answer is None else answer


def join(
    asked: Sequence[TokenRequest], scores: Sequence[tuple[Scores, ...]], decoded: Iterable[Decoded]
) -> list[tuple[TokenRequest, Result]]:
    """Return requests with their results; `decoded` holds one answer for each request that generates."""
    answers = iter(decoded)
    return [(request, _result(request, own, answers)) for request, own in zip(asked, scores, strict=True)]


def _result(request: TokenRequest, scores: tuple[Scores, ...], decoded: Iterator[Decoded]) -> Result:
    if not request.generate:
        return Result((), (), None, scores)
    answer = next(decoded)
    return Result(answer.tokens, answer.log_probs, answer.beam_score, scores)
