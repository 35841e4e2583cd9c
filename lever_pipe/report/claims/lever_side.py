"""What the claims of documents 000 to 002 ask for; published numbers and ours answer alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from lever_pipe.report.claims.quantities import Quantity
from lever_pipe.report.claims.verdicts import Check

Statistic = Literal["mean", "first", "last", "minimum"]
"""Of a metric over the epochs of a training-curve run."""
Shots = int | Literal["mean"]


class LeverSide(Protocol):
    """One side of a claim; every method raises `NotTestable` where its number does not exist."""

    @property
    def word(self) -> str:
        """Return `printed` or `logged`: how the numbers came down."""

    def near(self, samples: int) -> int:
        """Return the sample count of this side that is nearest to the document's."""

    def require_print(self) -> None:
        """Raise `NotTestable` unless this side is the printed text itself."""

    def curve(self, beta: float, metric: str, statistic: Statistic) -> Quantity:
        """Return a statistic of a training-curve run."""

    def minimum_epoch(self, beta: float, metric: str) -> int:
        """Return the epoch of the smallest value of a training-curve run."""

    def every_epoch(self, beta: float, metric: str) -> NDArray[np.float64]:
        """Return [E] a metric of a training-curve run, epoch by epoch."""

    def training(self, beta: float, epoch: int, metric: str) -> Quantity:
        """Return a training metric of one epoch, mean over seeds."""

    def together(self, betas: Sequence[float], epochs: Sequence[int], metric: str) -> dict[tuple[float, int], Quantity]:
        """Return a training metric of several betas and epochs, all from one document's runs."""

    def by_seed(self, beta: float, epoch: int, metric: str) -> NDArray[np.float64]:
        """Return [S] a training metric of one epoch, seed by seed."""

    def accuracy(self, beta: float, epoch: int, samples: int, shots: int) -> Quantity:
        """Return an accuracy in percent."""

    def long_accuracy(self, beta: float, samples: int, shots: int) -> Quantity:
        """Return an accuracy in percent after the training-curve run."""

    def long_epoch(self, beta: float) -> int:
        """Return the epoch of a training-curve run that `long_accuracy` is of."""

    def separation(self, left: float, right: float, epoch: int, samples: int, shots: Shots) -> tuple[Check, str]:
        """Return left minus right in points with what decides, and both as text."""

    def same_selections(self, left: float, right: float) -> tuple[Quantity, str]:
        """Return the percentage of queries with equal first demonstrations of two betas, and how it was counted."""

    def differing_parameters(self, beta: float) -> tuple[Quantity, str]:
        """Return the percentage of parameters that differ, and from what."""

    def update_size(self, beta: float, epoch: int) -> Quantity:
        """Return the norm of the update as a share of the base's norm."""

    def gradient_share(self, beta: float, epoch: int, n_groups: int) -> tuple[Quantity, str]:
        """Return the share of groups whose rewards do not all tie, and how it is known."""

    def lineage(self, beta: float, epoch: int) -> Mapping[str, str]:
        """Return how a run came to be: the fields of `tables/lineage.py`, unknown ones left out."""
