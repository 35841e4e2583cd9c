"""A mixture of uniform, image-similar and question-similar examples (the published MixSampler).

The published sampler could repeat an example and offer the query itself; here each part excludes the earlier parts. The
uniform part is drawn first, so that the nearest examples of both kinds are always in the pool, drawn or added.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lever_pipe.lever.samplers.protocol import SamplingView, nearest

UNIFORM_SHARE, IMAGE_SHARE = 0.5, 0.25  # questions take the rest


def sample(view: SamplingView, size: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return `size` distinct eligible ids: uniform ones, then image-similar, then question-similar ones.

    At K = 64 these are 32, 16 and 16.
    """
    n_uniform, n_image, n_question = counts(size)
    uniform = generator.choice(view.eligible, size=n_uniform, replace=False)
    remaining = np.setdiff1d(view.eligible, uniform)
    image = nearest(remaining, view.image_similarity, n_image)
    question = nearest(np.setdiff1d(remaining, image), view.question_similarity, n_question)
    return np.concatenate([uniform, image, question])


def counts(size: int) -> tuple[int, int, int]:
    """Return the numbers of uniform, image-similar and question-similar examples in a pool of `size`."""
    uniform, image = int(size * UNIFORM_SHARE), int(size * IMAGE_SHARE)
    return uniform, image, size - uniform - image
