from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.base import seeding
from lever_pipe.base.shapes import ShapeError
from lever_pipe.statistics.comparison import least_seed_p, seed_flip_p, sign_flip_p

DIFFERENCES = st.lists(st.integers(-50, 50), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([-0.098, -0.047, -0.085], 0.25),  # all of one sign: 2 of the 8 ways are as far from 0
        ([-0.161, -0.104, 0.095], 0.5),  # -0.170: as far are +-0.170 and +-0.360, of 8
        ([0.5], 1.0),  # one seed tells nothing
        ([0.0, 0.0], 1.0),
        ([1, 1, 1, 1, 1, 1], 2 / 64),
    ],
)
def test_by_hand(differences: list[float], p: float) -> None:
    assert seed_flip_p(differences) == p


@given(DIFFERENCES)
def test_by_brute_force(differences: list[int]) -> None:
    sums = [abs(sum(sign * d for sign, d in zip(signs, differences, strict=True)))
            for signs in product((1, -1), repeat=len(differences))]  # fmt: skip
    assert seed_flip_p(differences) == sum(value >= abs(sum(differences)) for value in sums) / len(sums)


@given(DIFFERENCES)
def test_signs_and_order_do_not_matter(differences: list[int]) -> None:
    p = seed_flip_p(differences)
    assert seed_flip_p([-value for value in reversed(differences)]) == p
    assert least_seed_p(len(differences)) <= p <= 1
    # whole numbers lie on a lattice, where the test over questions counts exactly, too
    assert sign_flip_p(differences, generator=seeding.generator(0, "unused")) == pytest.approx(p, abs=1e-9)


def test_how_many_seeds_a_separation_needs() -> None:
    assert [least_seed_p(n) for n in (1, 2, 3, 5, 6)] == [1, 0.5, 0.25, 0.0625, 0.03125]


@pytest.mark.parametrize("differences", [[], np.zeros((2, 2)), np.zeros(17)])
def test_other_shapes_are_refused(differences: object) -> None:
    with pytest.raises(ShapeError, match="differences_S"):
        seed_flip_p(differences)  # type: ignore[arg-type]
