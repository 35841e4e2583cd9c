"""How rewards and advantages of stored selections spread, as counts in bins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from torch import Tensor

from lever_pipe.experiment.config import Reward

WIDTHS = {"reward": 0.1, "advantage": 0.25}
"""Of a bin; from its low end, which belongs to it, to its high end."""
ROUNDING = 1e-5  # of a bin: 0.6 as a float32 lies below the bin that begins there


class BinRow(NamedTuple):
    """A line of `rewards.csv`; bins without a selection have none, and exact zeros a bin from 0 to 0 of their own."""

    mode: str  # of the reward, and its weights as `ties.csv` has them
    hard: float
    soft: float
    relevance: float
    what: str  # `reward` or `advantage`
    kept: str  # how many best-rewarded selections of a query count, or `all`
    low: float
    high: float
    n: int  # selections
    share: float  # of all that count, in [0, 1]


def bins(reward: Reward, what: str, kept: str, values: Tensor, valid: Tensor) -> Iterator[BinRow]:
    """Yield the bins of the valid values, rising.

    Args:
        reward: what the values are of.
        what: a key of `WIDTHS`.
        kept: how many selections of a query there are.
        values: [B, G].
        valid: [B, G] bool.
    """
    width = WIDTHS[what]
    found = values[valid].double().numpy()
    zeros = int((found == 0).sum())
    places = Counter(np.floor(found[found != 0] / width + ROUNDING).astype(int).tolist())
    ends = [(0.0, 0.0, zeros)] if zeros else []
    ends += [(round(place * width, 9), round((place + 1) * width, 9), n) for place, n in places.items()]
    for low, high, n in sorted(ends):
        yield BinRow(reward.mode, reward.hard, reward.soft, reward.relevance, what, kept, low, high, n, n / len(found))
