"""Do two policies choose the same demonstrations?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lever_pipe.shapes import ShapeError


@dataclass(frozen=True, slots=True)
class Agreement:
    """Shares of queries, in [0, 1], on which two policies agree; NaN without queries."""

    per_position: tuple[float, ...]
    """One share for each of the S positions of the prompt."""
    ordered: float
    """The same demonstrations in the same order: the same prompt."""
    as_sets: float
    """The same demonstrations in any order; at least `ordered`."""


def selection_agreement(first_NS: NDArray[np.int64], second_NS: NDArray[np.int64]) -> Agreement:
    """Return how often two policies select the same demonstrations for the same N queries.

    Args:
        first_NS: [N, S] ids of the demonstrations that one policy selects, in prompt order.
        second_NS: [N, S] the same for the other policy, rows in the same order of queries.

    Raises:
        ShapeError: the arrays are not of one shape [N, S].

    Source: this project
    """
    if first_NS.ndim != 2 or first_NS.shape != second_NS.shape:
        raise ShapeError(
            f"first_NS and second_NS must be [N, S] alike, got {list(first_NS.shape)} and {list(second_NS.shape)}"
        )
    same_NS = first_NS == second_NS
    same_set_NS = np.sort(first_NS, axis=1) == np.sort(second_NS, axis=1)
    return Agreement(
        per_position=tuple(_share(same_NS[:, s]) for s in range(same_NS.shape[1])),
        ordered=_share(same_NS.all(axis=1)),
        as_sets=_share(same_set_NS.all(axis=1)),
    )


def _share(flags_N: NDArray[np.bool_]) -> float:
    return float(flags_N.mean()) if flags_N.size else float("nan")
