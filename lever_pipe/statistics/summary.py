"""What a table says beside a mean: spread over runs, and the standard error of one accuracy."""

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


def standard_error_percent(accuracy: float, n: int) -> float:
    """Return 100 sqrt(accuracy (1 - accuracy) / n), points of accuracy.

    The binomial value: exact for right-or-wrong scores, an upper bound for soft ones, since no
    distribution on [0, 1] with that mean varies more.

    Args:
        accuracy: mean score in [0, 1].
        n: number of questions, at least 1.

    Raises:
        ValueError: an argument is out of range.

    Source: Student 1908
    """
    if not 0 <= accuracy <= 1 or n < 1:
        raise ValueError(f"need accuracy in [0, 1] and n >= 1, got {accuracy} and {n}")
    return 100 * math.sqrt(accuracy * (1 - accuracy) / n)
