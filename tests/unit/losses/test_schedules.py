from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.losses.schedules import cosine, linear, warmup

shares = st.floats(0, 1)


def test_linear_by_hand() -> None:
    # The published temperature: 2 -> .5; a third of the way it has fallen by .5.
    assert linear(2.0, 0.5, 1 / 3) == pytest.approx(1.5, abs=1e-12)
    assert linear(2.0, 0.5, 0.0) == 2.0
    assert linear(2.0, 0.5, 1.0) == 0.5


def test_cosine_by_hand() -> None:
    # (1 + cos(pi/3))/2 = 3/4 of the way is still to go; at one half, one half.
    assert cosine(1.0, 0.0, 1 / 3) == pytest.approx(0.75, abs=1e-12)
    assert cosine(3.0, 1.0, 0.5) == pytest.approx(2.0, abs=1e-12)
    assert cosine(2.0, 0.5, 0.0) == 2.0
    assert cosine(2.0, 0.5, 1.0) == 0.5


@given(shares, shares)
def test_both_fall_monotonically_between_their_ends(first: float, second: float) -> None:
    early, late = sorted((first, second))
    for schedule in (linear, cosine):
        before, after = schedule(2.0, 0.5, early), schedule(2.0, 0.5, late)
        assert before >= after - 1e-12  # rounding of nearly equal progress
        assert 0.5 - 1e-12 <= after <= 2.0 + 1e-12


@given(shares)
def test_cosine_is_the_linear_one_on_a_bent_clock(progress: float) -> None:
    bent = math.sin(math.pi * progress / 2) ** 2  # = (1 - cos(pi p)) / 2
    assert cosine(2.0, 0.5, progress) == pytest.approx(linear(2.0, 0.5, bent), abs=1e-12)


def test_warmup() -> None:
    assert [warmup(step, 4) for step in (0, 1, 3, 4, 9)] == [0.0, 0.25, 0.75, 1.0, 1.0]
    assert warmup(0, 0) == 1.0


@pytest.mark.parametrize("progress", [-0.01, 1.01, math.nan])
def test_progress_outside_the_unit_interval_is_an_error(progress: float) -> None:
    for schedule in (linear, cosine):
        with pytest.raises(ValueError, match=r"progress must be in \[0, 1\]"):
            schedule(1.0, 0.0, progress)


def test_negative_steps_are_an_error() -> None:
    with pytest.raises(ValueError, match="steps must be at least 0"):
        warmup(-1, 4)
