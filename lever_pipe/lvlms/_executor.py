"""What runs a wave of the plan, and what every way of running it shares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lever_pipe.lvlms._decoding import Decoded
from lever_pipe.lvlms._layers import LanguageModel
from lever_pipe.lvlms._planner import TrieNode
from lever_pipe.lvlms._requests import Result, Scores, TokenRequest

VALUES_PER_BLOCK = 2**27  # log-probabilities at one time: half a gigabyte


class Executor(Protocol):
    """Computes nodes whose parents it has computed before, and keeps what later ones need."""

    def run(self, wave: Sequence[TrieNode]) -> list[tuple[TokenRequest, Result]]:
        """Return the results of the requests that end in the wave's nodes."""
        ...

    def release(self, nodes: Iterable[TrieNode]) -> None:
        """Forget kept nodes."""
        ...

    def clear(self) -> None:
        """Forget all nodes, after a run that did not end."""
        ...


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


def read_out(
    language: LanguageModel, hidden: Tensor, asked: Sequence[TokenRequest]
) -> tuple[list[tuple[Scores, ...]], Tensor]:
    """Return the token log-probabilities of the given answers, and the line that each generated answer begins with.

    A large vocabulary makes a line dear, so the lines are made in blocks and only what is asked of them is kept.

    Args:
        language: reads the states.
        hidden: states [n, H]: request by request one behind the prompt, then one behind each fed answer token. An
            answer's first token is predicted behind the prompt, the others behind the token before them.
        asked: the requests.

    Returns:
        For each request its answers' token log-probabilities; for each request that generates the logits of its
        first token [requests, V].
    """
    places = _places(asked)
    block = max(1, VALUES_PER_BLOCK // language.vocabulary)
    values = torch.empty(len(places.lines), device=hidden.device)
    begins = []
    for start in range(0, len(hidden), block):
        logits = language.logits(hidden[start : start + block])
        inside = _within(places.lines, start, start + block)
        rows = [places.lines[i] - start for i in inside]
        values[inside] = logits.log_softmax(-1)[rows, [places.tokens[i] for i in inside]]
        begins.append(logits[[places.begins[i] - start for i in _within(places.begins, start, start + block)]])
    found = iter(values.tolist())
    scores = [tuple(tuple(next(found) for _ in answer) for answer in request.answers) for request in asked]
    return scores, torch.cat(begins)


@dataclass(frozen=True)
class _Places:
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


def _within(lines: Sequence[int], start: int, end: int) -> list[int]:
    return [i for i, line in enumerate(lines) if start <= line < end]


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
