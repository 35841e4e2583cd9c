"""Do two policies choose the same demonstrations, and do two selectors hold the same parameters?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lever_pipe.base.shapes import ShapeError

ENDED = -1
"""In the place of a demonstration behind the last one of a selection."""


@dataclass(frozen=True, slots=True)
class AgreementMatrices:
    """Shares of queries, in [0, 1], for every two of P policies at one number of shots; each [P, P], symmetric."""

    as_sequence: NDArray[np.float64]
    """The first demonstrations agree one by one: the same prompt."""
    as_set: NDArray[np.float64]
    """They agree in any order; at least `as_sequence`."""
    at_position: NDArray[np.float64]
    """The last of them agrees; at least `as_sequence`."""


@dataclass(frozen=True, slots=True)
class ParameterDifference:
    """How a set of parameters differs from a base."""

    n_parameters: int
    n_differing: int
    squares: float
    """Sum of squared differences."""
    base_squares: float
    """Sum of squares of the base."""

    def __add__(self, other: ParameterDifference) -> ParameterDifference:
        """Return the difference of both sets of parameters together."""
        return ParameterDifference(
            self.n_parameters + other.n_parameters,
            self.n_differing + other.n_differing,
            self.squares + other.squares,
            self.base_squares + other.base_squares,
        )

    @property
    def share_differing(self) -> float:
        """Return the share of parameters, in [0, 1], whose value is not the base's; NaN without parameters."""
        return self.n_differing / self.n_parameters if self.n_parameters else math.nan

    @property
    def norm(self) -> float:
        """Return the Euclidean norm of the difference."""
        return math.sqrt(self.squares)

    @property
    def relative_norm(self) -> float:
        """Return the norm as a share of the base's norm; NaN where the base is zero."""
        return math.sqrt(self.squares / self.base_squares) if self.base_squares else math.nan


def agreement_matrices(selections_PNS: NDArray[np.int64], shots: int) -> AgreementMatrices:
    """Return how often every two of P policies agree in their first `shots` demonstrations for the same N queries.

    Args:
        selections_PNS: [P, N, S] ids of the demonstrations in prompt order; every policy has the same queries.
        shots: how many demonstrations of the S are compared, at least 1.

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
    return AgreementMatrices(
        as_sequence=_equal_shares(_row_numbers(first_PNS)),
        as_set=_equal_shares(_row_numbers(np.sort(first_PNS, axis=2))),
        at_position=_equal_shares(first_PNS[:, :, -1]),
    )


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


def parameter_differences(
    values: Mapping[str, NDArray[Any]], base: Mapping[str, NDArray[Any]]
) -> dict[str, ParameterDifference]:
    """Return for each named tensor, of any one shape, how its values differ from the base's.

    A parameter differs when its value is not exactly the base's; norms are taken in float64.

    Raises:
        ShapeError: the two do not have the same tensors.

    Source: this project
    """
    shapes, base_shapes = ({name: v.shape for name, v in tensors.items()} for tensors in (values, base))
    if shapes != base_shapes:
        odd = sorted(name for name in shapes.keys() | base_shapes.keys() if shapes.get(name) != base_shapes.get(name))
        raise ShapeError(f"values and base must hold the same tensors, they differ in {', '.join(odd)}")
    return {name: _difference(values[name], base[name]) for name in sorted(values)}


def clusters(agreement_PP: NDArray[np.float64], threshold: float) -> list[list[int]]:
    """Return policies that agree with each other, every two of a cluster in at least `threshold` of the queries.

    Args:
        agreement_PP: [P, P] symmetric shares in [0, 1]; the diagonal is not read.
        threshold: share from which on two policies count as one.

    Returns:
        Each policy's position once; a policy joins the first cluster that it fits, in the given order.

    Source: this project
    """
    found: list[list[int]] = []
    for policy in range(len(agreement_PP)):
        fitting = (c for c in found if all(agreement_PP[policy, other] >= threshold for other in c))
        cluster = next(fitting, None)
        if cluster is None:
            found.append([policy])
        else:
            cluster.append(policy)
    return found


def _row_numbers(rows_PNS: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return one number for each distinct row, so that rows compare as numbers."""
    policies, queries, shots = rows_PNS.shape
    _, numbers = np.unique(rows_PNS.reshape(-1, shots), axis=0, return_inverse=True)
    return numbers.reshape(policies, queries)


def _equal_shares(values_PN: NDArray[np.int64]) -> NDArray[np.float64]:
    shares = [(values_PN == of_one_N).mean(axis=1) for of_one_N in values_PN]
    return np.array(shares, dtype=np.float64).reshape(len(values_PN), len(values_PN))


def _difference(values: NDArray[Any], base: NDArray[Any]) -> ParameterDifference:
    gaps = values.astype(np.float64) - base.astype(np.float64)
    squares, base_squares = float(np.square(gaps).sum()), float(np.square(base.astype(np.float64)).sum())
    return ParameterDifference(values.size, int(np.count_nonzero(gaps)), squares, base_squares)
