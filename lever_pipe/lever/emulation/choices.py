"""What the selections of an arm have in common: repeats within a prompt, equal prompts between its policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from lever_pipe.metrics.agreement import selection_agreement

Chosen = NDArray[np.int64]
"""[N, S] train items that one policy chooses for N queries, in prompt order."""
K = TypeVar("K")


def repeated_share(chosen_NS: Chosen, shots: int) -> float:
    """Return the share of prompts of so many shots that show a demonstration twice."""
    ordered_Nk = np.sort(chosen_NS[:, :shots], axis=1)
    return float((ordered_Nk[:, 1:] == ordered_Nk[:, :-1]).any(axis=1).mean())


def prompts_a_query(policies: Sequence[Chosen], shots: int) -> NDArray[np.int64]:
    """Return how many distinct prompts of so many shots the policies together make of each query, [N]."""
    stacked_PNk = np.stack([chosen[:, :shots] for chosen in policies])
    return np.array([len(np.unique(stacked_PNk[:, query], axis=0)) for query in range(stacked_PNk.shape[1])])


def identical_prompts(policies: Mapping[K, Chosen], shots: int) -> list[tuple[K, K, float]]:
    """Return every two policies with the share of queries that get the same prompt of so many shots."""
    return [
        (one, other, selection_agreement(policies[one][:, :shots], policies[other][:, :shots]).ordered)
        for one, other in combinations(policies, 2)
    ]
