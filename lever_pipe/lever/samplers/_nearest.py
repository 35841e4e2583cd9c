"""The shared step of the similarity samplers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def nearest(eligible: NDArray[np.int64], similarity: NDArray[np.float32], size: int) -> NDArray[np.int64]:
    """Return the `size` eligible ids of highest similarity, best first; ties by id."""
    order = np.argsort(-similarity[eligible], kind="stable")
    return eligible[order[:size]]
