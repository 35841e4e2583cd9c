"""What a selector of a user's own is: a function `select` of a module `lever/policies/NAME.py` beside the package.

The environment variable `LEVER_PIPE_PLUGINS` names the folder that holds `lever/policies/NAME.py`, `grid.policies`
names `NAME`. The module's code is part of the job's identity, so that an edit selects again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lever_pipe.base.records import Example


class Choice(NamedTuple):
    """One query and what may be shown with it."""

    query: Example
    """Its `answers` are there, too; a selector that reads them is an oracle."""
    candidates: Sequence[Example]
    """The K examples of its pool."""
    image_similarity: NDArray[np.float32]
    """[K] cosines of the images' embeddings with the query's."""
    question_similarity: NDArray[np.float32]
    """[K] of the questions'."""
    image_embeddings: NDArray[np.float32]
    """[K, D] unit vectors of the candidates' images."""
    question_embeddings: NDArray[np.float32]
    """[K, D] of their questions."""


class PolicyPlugin(Protocol):
    """A module of `lever_pipe/lever/policies`."""

    def select(self, choice: Choice, shots: int) -> Sequence[int]:
        """Return distinct positions in `choice.candidates`, best first, `shots` of them at least."""
