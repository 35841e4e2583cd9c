from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from claim_files import KL, NO_KL, STEPS, agrees
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.statistics.curves import (
    CurveStatistics,
    curve_statistics,
    drawdowns,
    excess_sd,
    first_reaching,
    trapezoid_weights,
)

CURVES = st.lists(st.integers(500, 3000).map(lambda n: n / 1000), min_size=6, max_size=12, unique=True)
"""Rewards with three decimals; unique, because equal values have no variance."""

# Numbers of the published curves, no KL and KL bundle, as an independent reading of them printed.
PRINTED = {
    "mean": ("1.9346", "1.9040"),
    "sd": ("0.1653", "0.1334"),
    "median": ("1.840", "1.915"),
    "least": ("1.750", "1.695"),
    "most": ("2.202", "2.123"),
    "value_range": ("0.452", "0.428"),
    "sd_of_changes": ("0.2027", "0.1947"),
    "rms_of_changes": ("0.1956", "0.1862"),
    "mean_size_of_changes": ("0.1547", "0.1598"),
    "largest_change": ("0.322", "0.297"),
    "total_variation": ("1.238", "1.278"),
    "sign_changes": ("4", "5"),
    "falls": ("4", "3"),
    "drawdown": ("0.390", "0.224"),
    "drawdown_from": ("10", "10"),
    "drawdown_to": ("25", "15"),
    "slope_t": ("1.19", "1.87"),
    "residual_sd": ("0.1612", "0.1164"),
    "r_squared": ("0.17", "0.33"),
    "von_neumann": ("1.40", "1.95"),
    "lag_one": ("0.16", "-0.19"),
    "trapezoid_mean": ("1.9251", "1.9107"),
    "mean_of_last_3": ("2.082", "1.989"),
    "mean_of_last_5": ("1.957", "1.953"),
}
PERCENT = {"variation": ("8.54", "7.01"), "relative_drawdown": ("18.2", "11.2")}
FOR_100_STEPS = {"slope": ("0.494", "0.563"), "slope_error": ("0.416", "0.301")}
CHANGES = (
    [0.322, -0.300, -0.010, -0.080, 0.038, 0.252, -0.037, 0.199],
    [0.297, -0.224, 0.147, 0.055, -0.142, 0.012, 0.283, -0.118],
)
RELATIVE = ([17.7, -14.0, -0.5, -4.4, 2.2, 14.1, -1.8, 9.9], [17.5, -11.2, 8.3, 2.9, -7.2, 0.7, 15.4, -5.6])


@pytest.fixture(scope="module")
def curves() -> list[CurveStatistics]:
    return [curve_statistics(STEPS, rewards) for rewards in (NO_KL, KL)]


@pytest.mark.parametrize("name", PRINTED)
def test_the_published_curves(curves: list[CurveStatistics], name: str) -> None:
    for curve, text in zip(curves, PRINTED[name], strict=True):
        assert agrees(float(getattr(curve, name)), text), (name, getattr(curve, name), text)


def test_the_published_curves_in_other_units(curves: list[CurveStatistics]) -> None:
    for scale, printed in ((100.0, PERCENT), (100.0, FOR_100_STEPS)):
        for name, texts in printed.items():
            for curve, text in zip(curves, texts, strict=True):
                assert agrees(scale * getattr(curve, name), text), name


def test_the_published_changes(curves: list[CurveStatistics]) -> None:
    for curve, changes, relative in zip(curves, CHANGES, RELATIVE, strict=True):
        assert curve.changes == pytest.approx(changes, abs=5e-4)
        assert [round(100 * change, 1) for change in curve.relative_changes] == relative


def test_the_published_shares_of_the_ceiling(curves: list[CurveStatistics]) -> None:
    ceiling = 2.6775  # mean over the 40 validation tasks of the largest reward of an episode
    assert [round(100 * curve.mean / ceiling, 1) for curve in curves] == [72.3, 71.1]
    assert [round(100 * curve.most / ceiling, 1) for curve in curves] == [82.2, 79.3]


def test_the_published_rewards_are_means_over_forty_episodes() -> None:
    """Three decimals; a mean of n rewards, each a multiple of 0.1, lies on 0.1 / n (GRIM, Brown 2017)."""
    rewards = np.array(NO_KL + KL)
    fits = [n for n in range(1, 41) if np.all(np.abs(rewards - np.round(rewards * n / 0.1) * 0.1 / n) <= 0.0005 + 1e-9)]
    assert fits == [40]


@given(values=CURVES, shift=st.floats(0, 5), scale=st.floats(0.5, 2))
def test_shifts_and_scales(values: list[float], shift: float, scale: float) -> None:
    steps = range(1, len(values) + 1)
    before, after = curve_statistics(steps, values), curve_statistics(steps, [shift + scale * v for v in values])
    for name in ("sd", "value_range", "sd_of_changes", "total_variation", "drawdown", "slope", "residual_sd"):
        # sums of about ten numbers below 20 in double precision
        assert getattr(after, name) == pytest.approx(scale * getattr(before, name), rel=1e-6, abs=1e-9)
    for name in ("von_neumann", "lag_one", "r_squared"):
        assert getattr(after, name) == pytest.approx(getattr(before, name), rel=1e-6, abs=1e-6)
    assert (after.falls, after.best_step) == (before.falls, before.best_step)


@given(values=CURVES)
def test_drawdown_is_the_largest_fall_between_any_two(values: list[float]) -> None:
    falls = [values[i] - values[j] for i in range(len(values)) for j in range(i, len(values))]
    found = curve_statistics(range(len(values)), values)
    assert found.drawdown == max(falls)
    assert drawdowns(np.array([values]))[0] == max(falls)
    assert found.total_variation == pytest.approx(sum(abs(b - a) for a, b in pairwise(values)), rel=1e-12)


def test_steps_need_not_be_even() -> None:
    # trapezes of widths 1, 2, 1, 4: 0.5 + 3 + 2 + 6 = 11.5 over a span of 8
    found = curve_statistics([0, 1, 3, 4, 8], [0, 1, 2, 2, 1])
    assert found.trapezoid_mean == pytest.approx(11.5 / 8, rel=1e-12)
    assert found.best_step == 3  # the first of two


def test_a_perfect_line_has_no_error() -> None:
    found = curve_statistics(range(5), [1, 2, 3, 4, 5])
    assert found.slope == pytest.approx(1.0, rel=1e-12)
    assert found.drawdown == 0
    assert math.isnan(found.slope_t) or found.slope_t > 1e6  # the residuals are the last bits, or nothing


def test_a_change_from_zero_has_no_share() -> None:
    found = curve_statistics(range(5), [0, 1, 2, 1, 2])
    assert math.isnan(found.relative_changes[0])
    assert found.relative_changes[1] == 1.0


@pytest.mark.parametrize(
    ("steps", "values", "message"),
    [
        ([1, 2, 3], [1, 2, 3], "N >= 5"),
        ([1, 2, 3, 4, 5], [1, 2, 3, 4], "N >= 5"),
        ([1, 2, 2, 4, 5], [1, 2, 3, 4, 5], "rising steps"),
    ],
)
def test_other_curves_are_refused(steps: list[int], values: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        curve_statistics(steps, values)


def test_equal_values_have_no_correlation_and_no_trend() -> None:
    found = curve_statistics(range(5), [2.0] * 5)
    assert (found.sd, found.drawdown, found.slope, found.total_variation) == (0, 0, 0, 0)
    for name in ("r_squared", "von_neumann", "lag_one", "slope_t"):
        assert math.isnan(getattr(found, name)), name
    assert math.isnan(curve_statistics(range(5), [2, 2, 2, 2, 3]).lag_one)  # the earlier four are equal


def test_trapezoid_weights() -> None:
    # widths 5, 10: half of 5, half of both, half of 10, over a span of 15
    assert trapezoid_weights([0, 5, 15]) == pytest.approx([2.5 / 15, 7.5 / 15, 5 / 15], rel=1e-12)
    assert list(trapezoid_weights([45])) == [1.0]


@given(steps=st.lists(st.integers(0, 500), min_size=2, max_size=12, unique=True).map(sorted))
def test_trapezoid_weights_leave_a_constant_alone(steps: list[int]) -> None:
    weights = trapezoid_weights(steps)
    assert weights.sum() == pytest.approx(1.0, rel=1e-12)
    assert weights @ np.array(steps) == pytest.approx((steps[0] + steps[-1]) / 2, rel=1e-9)  # exact for a line


def test_what_noise_does_not_explain() -> None:
    # 0.5^2 - 2 0.3^2 = 0.07; changes smaller than the noise of two evaluations leave nothing
    assert excess_sd(0.5, 0.3) == pytest.approx(math.sqrt(0.07), rel=1e-12)
    assert excess_sd(0.2, 0.2) == 0.0


def test_first_reaching() -> None:
    assert first_reaching(STEPS, KL, 2.0) == 40
    assert first_reaching(STEPS, NO_KL, 2.14) == 10  # at least
    assert first_reaching(STEPS, KL, 2.2) is None
