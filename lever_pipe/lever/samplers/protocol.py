"""Interface of a pool sampler and its input.

To add a sampler, add a module `lever/samplers/<name>.py` with a function `sample` of the signature below; its name
is then valid in `pools.sampler`, and `tests/contracts/test_samplers.py` checks it. Before it calls a sampler, the stage
removes the examples that must not enter the pool (the query itself, by default all with its image) and checks that
enough remain. Randomness comes from `generator` alone, a stream of the one query, so that neither the order nor the
number of the queries changes a pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False, slots=True)
class SamplingView:
    """Candidates of one query; N train examples, M of them eligible."""

    eligible: NDArray[np.int64]  # [M] train ids, rising
    image_similarity: NDArray[np.float32]  # [N] cosine of the query's image with each train image
    question_similarity: NDArray[np.float32]  # [N] cosine of the query's question with each train question


class Sampler(Protocol):
    """A module of `lever_pipe/lever/samplers`."""

    def sample(self, view: SamplingView, size: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Return `size` distinct eligible train ids, `[K]`; their order defines the pool positions.

        Args:
            view: at least `size` eligible examples.
            size: K.
            generator: the query's own stream.
        """
        ...


def nearest(eligible: NDArray[np.int64], similarity: NDArray[np.float32], size: int) -> NDArray[np.int64]:
    """Return the `size` eligible ids of highest similarity, best first; ties by id."""
    order = np.argsort(-similarity[eligible], kind="stable")
    return eligible[order[:size]]
