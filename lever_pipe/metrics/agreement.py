"""Do two policies choose the same demonstrations?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lever_pipe.base.shapes import ShapeError

ENDED = -1
"""In the place of a demonstration behind the last one of a selection."""


def equal_selections(selections_PNS: NDArray[np.int64], shots: int) -> NDArray[np.float64]:
    """Return for every two of P policies the share of N queries whose first `shots` demonstrations are one prompt.

    Args:
        selections_PNS: [P, N, S] ids of the demonstrations in prompt order; every policy has the same queries.
        shots: how many demonstrations of the S are compared, at least 1.

    Returns:
        [P, P] in [0, 1], symmetric.

    Raises:
        ShapeError: not [P, N, S] with queries, or `shots` outside of 1..S.

    Source: this project
    """
    if selections_PNS.ndim != 3 or not selections_PNS.shape[1] or not 1 <= shots <= selections_PNS.shape[2]:
        raise ShapeError(
            f"selections_PNS must be [P, N, S] with N > 0 and 1 <= shots <= S, got {list(selections_PNS.shape)} "
            f"and {shots} shots"
        )
    first_PNS = selections_PNS[:, :, :shots]
    return np.array([(first_PNS == of_one_NS).all(axis=2).mean(axis=1) for of_one_NS in first_PNS])


def padded_selections(chosen: Sequence[Sequence[int]], shots: int) -> NDArray[np.int64]:
    """Return the first demonstrations of N selections as one array, [N, S]; short ones go on with `ENDED`.

    So two selections are one prompt where their rows are equal, and behind their ends short ones agree.

    Args:
        chosen: ids in prompt order, of any length, N times.
        shots: S.

    Source: this project
    """
    rows = [[*row[:shots], *[ENDED] * (shots - len(row))] for row in chosen]
    return np.array(rows, dtype=np.int64).reshape(len(rows), shots)
