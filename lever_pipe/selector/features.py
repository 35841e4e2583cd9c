"""What the selector sees of an example: one unit vector fused from its image and its question."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the rows of `[N, D]` scaled to length 1."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(length, 1e-12), dtype=np.float32)


def fuse(image_ND: NDArray[np.float32], question_ND: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return `norm(mean(norm(image), norm(question)))`, `[N, D]`; answers never enter."""
    return unit((unit(image_ND) + unit(question_ND)) / np.float32(2))
