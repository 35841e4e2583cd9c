"""Rotary positions of prompts, segment by segment.

A position depends only on what comes before: text advances by one a token, an image as its family says
(`_vision.ImageEncoder.block`). So a segment's positions are known up to its start, and nothing has to be remembered
between calls of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

Array = np.ndarray[Any, np.dtype[np.int64]]
AXES = 3
"""Rotary positions of a token: temporal, row, column."""
Grid = tuple[int, ...]
"""What of an image's size its tokens depend on: frames, rows and columns of patches."""


@dataclass(frozen=True)
class SegmentLayout:
    """A segment with its images expanded, or one image alone.

    Attributes:
        ids: token ids, an image's placeholder repeated for each of its tokens [n].
        positions: relative to the start, on each axis [AXES, n].
        advance: how far the next segment's start lies behind this one's.
    """

    ids: Array
    positions: Array
    advance: int


def segment_layout(ids: Sequence[int], images: Sequence[SegmentLayout], *, image_token: int) -> SegmentLayout:
    """Return the expanded layout of one segment.

    Args:
        ids: token ids with one `image_token` an image.
        images: layout of each image in order.
        image_token: the placeholder's id.
    """
    tokens: list[Array] = []
    positions: list[Array] = []
    start, at, remaining = 0, 0, iter(images)
    for end in [i for i, token in enumerate(ids) if token == image_token] + [len(ids)]:
        tokens.append(np.asarray(ids[at:end], dtype=np.int64))
        positions.append(np.broadcast_to(start + np.arange(end - at), (AXES, end - at)))
        start, at = start + end - at, end + 1
        if end < len(ids):
            image = next(remaining)
            tokens.append(image.ids)
            positions.append(start + image.positions)
            start += image.advance
    return SegmentLayout(np.concatenate(tokens), np.concatenate(positions, axis=1), start)


def grid_layout(grid: Grid, merge: int, image_token: int) -> SegmentLayout:
    """Return an image whose tokens stand at their place in the merged grid: (start, start + row, start + column).

    What follows stands behind the longer side (source: Qwen2-VL).
    """
    frames, rows, columns = grid[0], grid[1] // merge, grid[2] // merge
    positions = np.indices((frames, rows, columns)).reshape(3, -1)
    ids = np.full(positions.shape[1], image_token, dtype=np.int64)
    return SegmentLayout(ids, positions, max(rows, columns))


def answer_positions(start: int, count: int) -> Array:
    """Return the positions of a given answer's first `count` tokens, which begin where the prompt ends."""
    return start + np.arange(count)


def decode_positions(starts: Tensor, step: int) -> Tensor:
    """Return each row's position of the generated token that is fed in step `step`, counted from 0."""
    return starts + step
