"""Protocol of user-defined selectors: modules `lever/policies/NAME.py` outside the package with a function `select`.

The environment variable `LEVER_PIPE_PLUGINS` names the folder that contains `lever/policies/NAME.py`, and
`grid.policies` names `NAME`. The module's code is part of the job's identity, so an edit triggers a new selection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lever_pipe.base.records import Example


class Choice(NamedTuple):
    """One query and its candidate demonstrations."""

    query: Example
    """Includes its `answers`; a selector that reads them is an oracle."""
    candidates: Sequence[Example]
    """The K examples of its pool."""
    image_similarity: NDArray[np.float32]
    """[K] cosines of the images' embeddings with the query's."""
    question_similarity: NDArray[np.float32]
    """[K] cosines of the questions' embeddings with the query's."""
    image_embeddings: NDArray[np.float32]
    """[K, D] unit vectors of the candidates' images."""
    question_embeddings: NDArray[np.float32]
    """[K, D] unit vectors of the candidates' questions."""


class PolicyPlugin(Protocol):
    """A module of `lever_pipe/lever/policies`."""

    def select(self, choice: Choice, shots: int) -> Sequence[int]:
        """Return at least `shots` distinct positions in `choice.candidates`, best first."""
