"""What runs a wave of the plan, and what every way of running it shares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from lever_pipe.lvlms._decoding import Decoded
from lever_pipe.lvlms._planner import Node
from lever_pipe.lvlms._requests import Answer, Request, Result, Scores


class Executor(Protocol):
    """Computes nodes whose parents it has computed before, and keeps what later ones need."""

    def run(self, wave: Sequence[Node]) -> list[tuple[Request, Result]]:
        """Return the results of the requests that end in the wave's nodes."""
        ...

    def release(self, nodes: Iterable[Node]) -> None:
        """Forget kept nodes."""
        ...


def with_requests(wave: Sequence[Node]) -> list[tuple[Node, Request]]:
    """Return the nodes in which a request ends."""
    return [(node, node.request) for node in wave if node.request is not None]


def log_probs(model: Any, hidden: Tensor) -> Tensor:
    """Return natural log-probabilities [..., V] in single precision."""
    return torch.log_softmax(model.lm_head(hidden).float(), dim=-1)


def answer_scores(lines: Tensor, asked: Sequence[Request]) -> list[tuple[Scores, ...]]:
    """Return the token log-probabilities of each request's given answers.

    Args:
        lines: log-probabilities [n, V]: request by request one behind the prompt, then one behind each fed answer
            token. An answer's first token is predicted behind the prompt, the others behind the token before them.
        asked: the requests.
    """
    at: list[int] = []
    tokens: list[int] = []
    first = 0
    for request in asked:
        branch = first + 1
        for answer in request.answers:
            at += [first, *range(branch, branch + len(answer) - 1)]
            tokens += answer
            branch += len(answer) - 1
        first = branch
    values = iter(lines[at, tokens].tolist())
    return [tuple(_take(values, answer) for answer in request.answers) for request in asked]


def first_lines(asked: Sequence[Request]) -> list[int]:
    """Return, for each request, the line behind its prompt among the lines of `answer_scores`."""
    lines, line = [], 0
    for request in asked:
        lines.append(line)
        line += 1 + sum(len(answer) - 1 for answer in request.answers)
    return lines


def join(
    asked: Sequence[Request], scores: Sequence[tuple[Scores, ...]], decoded: Iterable[Decoded]
) -> list[tuple[Request, Result]]:
    """Return requests with their results; `decoded` holds one answer for each request that generates."""
    answers = iter(decoded)
    return [(request, _result(request, own, answers)) for request, own in zip(asked, scores, strict=True)]


def _result(request: Request, scores: tuple[Scores, ...], decoded: Iterator[Decoded]) -> Result:
    if not request.generate:
        return Result((), (), None, scores)
    answer = next(decoded)
    return Result(answer.tokens, answer.log_probs, answer.beam_score, scores)


def _take(values: Iterator[float], answer: Answer) -> Scores:
    return tuple(next(values) for _ in answer)
