"""What is asked of a model and what it says, in token ids and image digests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

Answer = tuple[int, ...]
Scores = tuple[float, ...]


@dataclass(frozen=True)
class Segment:
    """A run of prompt tokens that begins at a special token; one placeholder and one digest an image.

    Segments and prompts are looked up often, so each computes its hash once.
    """

    ids: tuple[int, ...]
    images: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.ids, self.images))


@dataclass(frozen=True)
class TokenPrompt:
    """Segments in order; equal prompts have equal segments."""

    segments: tuple[Segment, ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.segments)

    @property
    def images(self) -> tuple[str, ...]:
        """The image digests in order."""
        return tuple(digest for segment in self.segments for digest in segment.images)


@dataclass(frozen=True)
class TokenRequest:
    """A prompt, token tuples to score as its continuations, and whether to generate one."""

    prompt: TokenPrompt
    answers: tuple[Answer, ...] = ()
    generate: bool = True


@dataclass(frozen=True)
class Result:
    """What the model says to one request.

    Attributes:
        tokens: the generated answer, the end of the turn included if it came; empty if none was asked for.
        token_log_probs: natural log-probability of each generated token.
        beam_score: the beam's score after the length penalty; None for greedy.
        scores: for each given answer the log-probability of each of its tokens.
    """

    tokens: Answer
    token_log_probs: Scores
    beam_score: float | None
    scores: tuple[Scores, ...]


def merge_requests(requests: Iterable[TokenRequest]) -> list[TokenRequest]:
    """Return one request a distinct prompt: the union of the answers in sorted order, generated if anyone asks."""
    answers: dict[TokenPrompt, set[Answer]] = {}
    generate: dict[TokenPrompt, bool] = {}
    for request in requests:
        answers.setdefault(request.prompt, set()).update(request.answers)
        generate[request.prompt] = generate.get(request.prompt, False) or request.generate
    return [TokenRequest(prompt, tuple(sorted(answers[prompt])), generate[prompt]) for prompt in answers]


def share_of(request: TokenRequest, merged: TokenRequest, result: Result) -> Result:
    """Return what one of several requests for the same prompt asked for, of the result of all of them together."""
    scores = dict(zip(merged.answers, result.scores, strict=True))
    asked = tuple(scores[answer] for answer in request.answers)
    if not request.generate:
        return Result((), (), None, asked)
    return Result(result.tokens, result.token_log_probs, result.beam_score, asked)
