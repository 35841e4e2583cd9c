"""Rows of one forward: prompts padded on the left, their given answers as masked branches behind them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from lever_pipe.lvlms import _positions
from lever_pipe.lvlms._positions import Layout


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
class Prompt:
    """Segments in order; equal prompts have equal segments."""

    segments: tuple[Segment, ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.segments)

    @cached_property
    def images(self) -> tuple[str, ...]:
        """The image digests in order."""
        return tuple(digest for segment in self.segments for digest in segment.images)

    @cached_property
    def key(self) -> tuple[tuple[tuple[int, ...], tuple[str, ...]], ...]:
        """A sortable value whose order puts prompts with a common beginning side by side."""
        return tuple((segment.ids, segment.images) for segment in self.segments)


@dataclass(frozen=True)
class Request:
    """A prompt, token tuples to score as its continuations, and whether to generate one."""

    prompt: Prompt
    answers: tuple[tuple[int, ...], ...] = ()
    generate: bool = True


@dataclass(frozen=True)
class Row:
    """A distinct request with its prompt laid out."""

    request: Request
    layouts: tuple[Layout, ...]
    length: int  # prompt tokens, images expanded
    end: int  # rotary position behind the prompt

    @property
    def branch_length(self) -> int:
        """Tokens to feed for the given answers: an answer's last token is only predicted."""
        return sum(len(answer) - 1 for answer in self.request.answers)

    @property
    def width(self) -> int:
        """Columns that the row needs."""
        return self.length + self.branch_length


def make_row(request: Request, layouts: tuple[Layout, ...]) -> Row:
    """Return a row; a segment's position starts where the segments before it end."""
    length = sum(layout.ids.size for layout in layouts)
    return Row(request, layouts, length, sum(layout.advance for layout in layouts))


def cut_waves(rows: Iterable[Row], wave_tokens: int) -> Iterator[list[Row]]:
    """Yield batches of rows of similar width whose padded size stays within `wave_tokens`, at least a row each.

    The result depends on the set of rows, not on their order; rows that generate are kept apart from those that only
    score.
    """
    ordered = sorted(rows, key=lambda row: (row.request.generate, row.width, row.request.prompt.key), reverse=True)
    wave: list[Row] = []
    prompt = branch = 0
    for row in ordered:
        prompt_now, branch_now = max(prompt, row.length), max(branch, row.branch_length)
        full = (len(wave) + 1) * (prompt_now + branch_now) > wave_tokens
        if wave and (full or row.request.generate != wave[0].request.generate):
            yield wave
            wave, prompt_now, branch_now = [], row.length, row.branch_length
        wave.append(row)
        prompt, branch = prompt_now, branch_now
    if wave:
        yield wave


@dataclass(frozen=True)
class Batch:
    """Tensors of a wave; n = prompt columns + branch columns.

    Attributes:
        ids: token ids [B, n].
        images: where image features go, bool [B, n].
        positions: rotary positions [3, B, n].
        mask: who sees whom, bool [B, 1, n, n].
        prompt: columns of the prompt, bool [B, n]; what a generated token sees.
        ends: rotary position behind each prompt [B].
        n_prompt: prompt columns.
    """

    ids: Tensor
    images: Tensor
    positions: Tensor
    mask: Tensor
    prompt: Tensor
    ends: Tensor
    n_prompt: int


def assemble(rows: Sequence[Row], *, image_token: int, device: torch.device) -> Batch:
    """Return the tensors of a wave."""
    n_prompt = max(row.length for row in rows)
    shape = (len(rows), n_prompt + max(row.branch_length for row in rows))
    ids = np.zeros(shape, dtype=np.int64)
    positions = np.zeros((3, *shape), dtype=np.int64)
    branch = np.full(shape, -1, dtype=np.int64)  # -1 padding, 0 prompt, from 1 the answers
    for index, row in enumerate(rows):
        _place_prompt(row, n_prompt, ids[index], positions[:, index], branch[index])
        _place_answers(row, n_prompt, ids[index], positions[:, index], branch[index])
    branches = torch.from_numpy(branch).to(device)
    tokens = torch.from_numpy(ids).to(device)
    prompt = branches == 0
    return Batch(
        ids=tokens,
        images=prompt & (tokens == image_token),
        positions=torch.from_numpy(positions).to(device),
        mask=_mask(branches),
        prompt=prompt,
        ends=torch.tensor([row.end for row in rows], device=device),
        n_prompt=n_prompt,
    )


def _place_prompt(
    row: Row, n_prompt: int, ids: _positions.Array, positions: _positions.Array, branch: _positions.Array
) -> None:
    column, start = n_prompt - row.length, 0
    branch[column:n_prompt] = 0
    for layout in row.layouts:
        end = column + layout.ids.size
        ids[column:end] = layout.ids
        positions[:, column:end] = layout.positions + start
        column, start = end, start + layout.advance


def _place_answers(
    row: Row, n_prompt: int, ids: _positions.Array, positions: _positions.Array, branch: _positions.Array
) -> None:
    column = n_prompt
    for number, answer in enumerate(row.request.answers, start=1):
        end = column + len(answer) - 1
        ids[column:end] = answer[:-1]
        positions[:, column:end] = _positions.answer_positions(row.end, end - column)
        branch[column:end] = number
        column = end


def _mask(branch: Tensor) -> Tensor:
    columns = branch.shape[1]
    query, key = branch[:, :, None], branch[:, None, :]
    causal = torch.ones(columns, columns, dtype=torch.bool, device=branch.device).tril()
    seen = causal & (query >= 0) & ((key == 0) | (key == query))
    # A padding column sees itself: a query that sees nothing would turn into NaN and spread through the values.
    return (seen | torch.eye(columns, dtype=torch.bool, device=branch.device))[:, None]
