from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from claim_files import KL, NO_KL, agrees
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lever_pipe import seeding
from lever_pipe.claims.curve_tests import compare_curves, f_test, flat_noise, half_width, swap_test_of_spread

# What an independent reading of the published curves printed of KL bundle minus no KL.
PRINTED = {
    "mean": "-0.031",
    "sd": "0.152",
    "t": "-0.60",
    "p_t": "0.56",
    "low": "-0.147",
    "high": "0.086",
    "p_wilcoxon": "0.57",
    "above": "4",
    "below": "5",
    "p_sign": "1",
    "variance_ratio_of_changes": "1.08",
    "p_f_of_changes": "0.92",
    "p_levene_of_changes": "0.97",
    "p_swap_of_changes": "0.78",
    "p_f_of_levels": "0.56",
}
SAMPLES = st.lists(st.floats(-2, 2), min_size=5, max_size=7, unique=True)


@pytest.mark.parametrize("name", PRINTED)
def test_the_published_curves(name: str) -> None:
    assert agrees(float(getattr(compare_curves(KL, NO_KL), name)), PRINTED[name])


def test_exchanging_the_curves_turns_the_difference() -> None:
    there, back = compare_curves(KL, NO_KL), compare_curves(NO_KL, KL)
    assert (there.mean, there.low, there.above) == (-back.mean, -back.high, back.below)
    for name in ("p_t", "p_wilcoxon", "p_sign", "p_f_of_changes", "p_levene_of_changes", "p_swap_of_changes"):
        assert getattr(there, name) == pytest.approx(getattr(back, name), rel=1e-9)  # two-sided


def test_the_t_interval_is_that_of_a_mean() -> None:
    found = compare_curves(KL, NO_KL)
    assert (found.high - found.low) / 2 == pytest.approx(half_width(found.sd, 9, 8), rel=1e-9)
    # t of 8 degrees at 97.5 % is 2.306 in any table
    assert half_width(1.0, 1, 8) == pytest.approx(2.306, abs=5e-4)


@settings(max_examples=25)
@given(left=SAMPLES, right=SAMPLES)
def test_swaps_by_brute_force(left: list[float], right: list[float]) -> None:
    n = min(len(left), len(right))
    pairs = list(zip(left[:n], right[:n], strict=True))
    gaps = []
    for swaps in product((False, True), repeat=n):
        sides = [(b, a) if swap else (a, b) for (a, b), swap in zip(pairs, swaps, strict=True)]
        gaps.append(abs(np.std([a for a, _ in sides], ddof=1) - np.std([b for _, b in sides], ddof=1)))
    expected = sum(gap >= gaps[0] - 1e-12 for gap in gaps) / len(gaps)
    assert swap_test_of_spread(left[:n], right[:n]) == pytest.approx(expected, rel=1e-12)


def test_f_test_against_its_law() -> None:
    generator = seeding.generator(0, "f_test")
    left, right = generator.normal(0, 1, 9), generator.normal(0, 2, 7)
    ratio = np.var(left, ddof=1) / np.var(right, ddof=1)
    assert f_test(left, right) == pytest.approx(2 * stats.f(8, 6).cdf(ratio), rel=1e-12)
    assert f_test(right, left) == pytest.approx(f_test(left, right), rel=1e-9)
    assert f_test(left, left) == pytest.approx(1.0, rel=1e-12)


def test_flat_noise_of_the_published_size() -> None:
    noise = flat_noise(9, 0.13, seeding.generator(3, "flat"))
    # printed with two decimals; Monte Carlo adds 0.0011
    assert noise.expected_drawdown == pytest.approx(0.34, abs=0.0065)
    assert noise.chance_of_drawdown(0.390) == pytest.approx(0.31, abs=0.0065)
    assert noise.chance_of_drawdown(0.224) == pytest.approx(0.86, abs=0.0065)


def test_flat_noise_of_two_values_is_known_exactly() -> None:
    # a fall of two values is max(0, x1 - x2) with x1 - x2 normal of sd sqrt(2) sd; its mean is sd / sqrt(pi)
    noise = flat_noise(2, 0.5, seeding.generator(1, "flat"))
    assert noise.expected_drawdown == pytest.approx(0.5 / math.sqrt(math.pi), abs=0.004)  # 4 standard errors
    at_least = 0.7
    assert noise.chance_of_drawdown(at_least) == pytest.approx(
        stats.norm.sf(at_least / (0.5 * math.sqrt(2))), abs=0.005
    )


def test_flat_noise_scales_and_repeats() -> None:
    one, two = (flat_noise(9, sd, seeding.generator(2, "flat"), n_draws=500) for sd in (0.1, 0.2))
    assert two.drawdown_draws == pytest.approx(2 * one.drawdown_draws, rel=1e-12)
    assert two.best_gap_draws == pytest.approx(2 * one.best_gap_draws, rel=1e-12)
    assert one.drawdown_draws.shape == (500,)
    assert one.chance_of_drawdown(0.0) == 1.0


def test_long_or_unequal_curves_are_refused() -> None:
    for left, right in ((range(4), range(4)), (range(18), range(18)), (range(6), range(7))):
        with pytest.raises(ValueError, match="5 <= N <= 17"):
            compare_curves(list(left), list(right))
