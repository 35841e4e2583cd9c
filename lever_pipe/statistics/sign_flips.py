"""The exact sign-flip test for a handful of differences, such as those between paired training seeds."""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import ArrayLike

from lever_pipe.base.shapes import ShapeError

SEEDS_AT_MOST = 16
"""Differences whose signs are all enumerated (65,536 ways)."""
_EQUAL = 1e-12


def seed_flip_p(differences_S: ArrayLike) -> float:
    """Return the two-sided p value of a mean difference of zero over paired seeds.

    Of all 2^S ways to exchange the two sides within seeds, the share whose sum is as far from 0 as the one seen. It
    infers to further seeds. No p lies below 2^(1 - S): 0.25 with three seeds, so that 0.05 needs six.

    Args:
        differences_S: [S] one difference a seed, 1 to 16 of them.

    Raises:
        ShapeError: not one-dimensional, empty, or more than can be enumerated.

    Source: Fisher 1935 (randomisation test)
    """
    differences = np.asarray(differences_S, dtype=np.float64)
    if differences.ndim != 1 or not 1 <= differences.size <= SEEDS_AT_MOST:
        raise ShapeError(f"differences_S must be [S] with 1 <= S <= {SEEDS_AT_MOST}, got {list(differences.shape)}")
    signs = np.array(list(product((1.0, -1.0), repeat=differences.size)))
    sums = np.abs(signs @ differences)
    return float(np.mean(sums >= sums[0] - _EQUAL))  # row 0 flips nothing


def least_seed_p(n_seeds: int) -> float:
    """Return the smallest p value that `seed_flip_p` can give.

    Args:
        n_seeds: paired seeds, at least 1.

    Source: Fisher 1935 (randomisation test)
    """
    return 2.0 ** (1 - n_seeds)
