"""The K train examples whose question is most similar to the query's (the published TextSimSampler)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lever_pipe.lever.samplers.protocol import SamplingView, nearest


def sample(view: SamplingView, size: int, generator: np.random.Generator) -> NDArray[np.int64]:  # noqa: ARG001
    """Return the `size` eligible ids of the most similar questions, best first, without random numbers."""
    return nearest(view.eligible, view.question_similarity, size)
