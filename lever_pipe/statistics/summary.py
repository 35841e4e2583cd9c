"""Mean and spread over runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def mean_and_sd(values: Sequence[float] | NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean and the unbiased standard deviation (NaN for a single value).

    Args:
        values: one number a run or seed, at least one.

    Raises:
        ValueError: there is no value, or the values are not one-dimensional.

    Source: Student 1908
    """
    values_N = np.asarray(values, dtype=np.float64)
    if values_N.ndim != 1 or values_N.size == 0:
        raise ValueError(f"values must be [N] with N >= 1, got shape {list(values_N.shape)}")
    sd = float(values_N.std(ddof=1)) if values_N.size > 1 else math.nan
    return float(values_N.mean()), sd
