"""What the selector sees of an example: a unit vector made of its image and its question."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the rows of `[N, D]` scaled to length 1."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(length, 1e-12), dtype=np.float32)


def fuse(image_ND: NDArray[np.float32], question_ND: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return `norm(mean(norm(image), norm(question)))`, `[N, D]`; answers never enter."""
    return unit((unit(image_ND) + unit(question_ND)) / np.float32(2))


def side_by_side(image_ND: NDArray[np.float32], question_ND: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return `[norm(image), norm(question)] / sqrt(2)`, `[N, 2 D]`: a network can tell the two apart."""
    parts = np.concatenate([unit(image_ND), unit(question_ND)], axis=-1)
    return np.asarray(parts / np.sqrt(np.float32(2)), dtype=np.float32)


def added(image_ND: NDArray[np.float32], question_ND: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return `norm(image) + norm(question)`, `[N, D]`, as the language model over train ids sees an example."""
    return unit(image_ND) + unit(question_ND)


INPUTS: Mapping[str, Callable[[NDArray[np.float32], NDArray[np.float32]], NDArray[np.float32]]] = {
    "fused": fuse,
    "parts": side_by_side,
    "added": added,
}
"""By `selector.inputs`; `added` is that of `network: train_ids`."""
