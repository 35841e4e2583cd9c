"""Rotary positions of Qwen2.5-VL prompts, segment by segment.

A position depends only on what comes before: text advances by one a token, an image by the longer side of its merged
grid, whose tokens get (start, start + row, start + column). So a segment's positions are known up to its start, and
nothing has to be remembered between calls of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

Array = np.ndarray[Any, np.dtype[np.int64]]
Grid = tuple[int, int, int]  # frames, rows and columns of patches


@dataclass(frozen=True)
class SegmentLayout:
    """A segment with its images expanded.

    Attributes:
        ids: token ids, an image placeholder repeated for each of its tokens [n].
        positions: temporal, row and column position relative to the segment's start [3, n].
        advance: how far the next segment's start lies behind this one's.
    """

    ids: Array
    positions: Array
    advance: int


def segment_layout(ids: Sequence[int], grids: Sequence[Grid], *, image_token: int, merge: int) -> SegmentLayout:
    """Return the expanded layout of one segment.

    Args:
        ids: token ids with one `image_token` an image.
        grids: patch grid of each image in order.
        image_token: the placeholder's id.
        merge: patches merged along each side into one token.
    """
    tokens: list[Array] = []
    positions: list[Array] = []
    start, at, remaining = 0, 0, iter(grids)
    for end in [i for i, token in enumerate(ids) if token == image_token] + [len(ids)]:
        tokens.append(np.asarray(ids[at:end], dtype=np.int64))
        positions.append(np.broadcast_to(start + np.arange(end - at), (3, end - at)))
        start, at = start + end - at, end + 1
        if end < len(ids):
            block, advance = image_positions(next(remaining), merge)
            tokens.append(np.full(block.shape[1], image_token, dtype=np.int64))
            positions.append(start + block)
            start += advance
    return SegmentLayout(np.concatenate(tokens), np.concatenate(positions, axis=1), start)


def image_positions(grid: Grid, merge: int) -> tuple[Array, int]:
    """Return the positions of an image's tokens relative to its start [3, n], and its advance."""
    frames, rows, columns = grid[0], grid[1] // merge, grid[2] // merge
    return np.indices((frames, rows, columns)).reshape(3, -1), max(rows, columns)


def answer_positions(start: int, count: int) -> Array:
    """Return the positions of a given answer's first `count` tokens, which begin where the prompt ends."""
    return start + np.arange(count)


def decode_positions(starts: Tensor, step: int) -> Tensor:
    """Return each row's position of the generated token that is fed in step `step`, counted from 0."""
    return starts + step
