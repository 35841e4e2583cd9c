"""Requests to a model and its results, as token ids and image digests, and the rotary positions of tokens.

A rotary position depends only on earlier tokens: text advances by one a token, an image by an amount that its grid
determines. So a segment's positions depend on its start alone, and no state is kept between calls of the model.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

Answer = tuple[int, ...]
Scores = tuple[float, ...]
Array = np.ndarray[Any, np.dtype[np.int64]]
AXES = 3
"""Rotary positions of a token: temporal, row, column."""
Grid = tuple[int, ...]
"""The part of an image's size that determines its tokens: frames, rows and columns of patches."""


@dataclass(frozen=True)
class Segment:
    """A run of prompt tokens that begins at a special token; one placeholder and one digest an image.

    Segments and prompts are looked up often, so each computes its hash once. Comparisons use the tokens, not the text.
    """

    ids: tuple[int, ...]
    images: tuple[str, ...] = ()
    text: str = field(default="", compare=False)

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

    @property
    def text(self) -> str:
        """The prompt in the format of its family, an image as one placeholder."""
        return "".join(segment.text for segment in self.segments)


@dataclass(frozen=True)
class TokenRequest:
    """A prompt, token tuples to score as its continuations, and whether to generate one."""

    prompt: TokenPrompt
    answers: tuple[Answer, ...] = ()
    generate: bool = True


@dataclass(frozen=True)
class Result:
    """The model's result for one request.

    Attributes:
        tokens: the generated answer, with the end of the turn if it was generated; empty if none was requested.
        token_log_probs: natural log-probability of each generated token.
        beam_score: the beam's score after the length penalty; None for greedy.
        scores: for each given answer the log-probability of each of its tokens.
    """

    tokens: Answer = ()
    token_log_probs: Scores = ()
    beam_score: float | None = None
    scores: tuple[Scores, ...] = ()


Results = Generator[tuple[TokenRequest, Result], None, None]
"""Requests with their results, each as soon as it is available."""


class PromptTooLongError(ValueError):
    """A prompt with its answer exceeds the model's context; the caller reports it with the prompt's text."""

    def __init__(self, prompt: TokenPrompt, tokens: int, limit: int) -> None:
        super().__init__(f"{tokens} tokens")
        self.prompt = prompt
        self.tokens = tokens
        self.limit = limit


def merge_requests(requests: Iterable[TokenRequest]) -> list[TokenRequest]:
    """Return one request for each distinct prompt: all its answers, sorted, and generation if any request has it."""
    answers: dict[TokenPrompt, set[Answer]] = {}
    generate: dict[TokenPrompt, bool] = {}
    for request in requests:
        answers.setdefault(request.prompt, set()).update(request.answers)
        generate[request.prompt] = generate.get(request.prompt, False) or request.generate
    return [TokenRequest(prompt, tuple(sorted(answers[prompt])), generate[prompt]) for prompt in answers]


@dataclass(frozen=True)
class Layout:
    """A segment with its images expanded, or one image alone.

    Attributes:
        ids: token ids, an image's placeholder repeated for each of its tokens [n].
        positions: relative to the start, on each axis [AXES, n].
        advance: distance from this segment's start to the next one's.
    """

    ids: Array
    positions: Array
    advance: int


def segment_layout(ids: Sequence[int], images: Sequence[Layout], *, image_token: int) -> Layout:
    """Return the expanded layout of one segment.

    Args:
        ids: token ids with one `image_token` an image.
        images: layout of each image in order.
        image_token: the placeholder's id.
    """
    tokens: list[Array] = []
    positions: list[Array] = []
    start, begin, remaining = 0, 0, iter(images)
    # The end of the segment counts as a placeholder, so that the loop includes the last text.
    for end in [i for i, token in enumerate(ids) if token == image_token] + [len(ids)]:
        tokens.append(np.asarray(ids[begin:end], dtype=np.int64))
        positions.append(np.broadcast_to(start + np.arange(end - begin), (AXES, end - begin)))
        start, begin = start + end - begin, end + 1
        if end < len(ids):
            image = next(remaining)
            tokens.append(image.ids)
            positions.append(start + image.positions)
            start += image.advance
    return Layout(np.concatenate(tokens), np.concatenate(positions, axis=1), start)


def image_layout(grid: Grid, merge: int, image_token: int) -> Layout:
    """Return an image whose tokens have positions in the merged grid: (start, start + row, start + column).

    The next token follows the longer side (source: Qwen2-VL).
    """
    frames, rows, columns = grid[0], grid[1] // merge, grid[2] // merge
    positions = np.indices((frames, rows, columns)).reshape(AXES, -1)
    ids = np.full(positions.shape[1], image_token, dtype=np.int64)
    return Layout(ids, positions, max(rows, columns))
