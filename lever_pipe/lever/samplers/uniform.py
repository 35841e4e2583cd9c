"""K train examples drawn uniformly (the published RandSampler)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lever_pipe.lever.samplers.protocol import SamplingView


def sample(view: SamplingView, size: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return `size` eligible ids drawn uniformly without replacement, in drawn order."""
    return generator.choice(view.eligible, size=size, replace=False)
