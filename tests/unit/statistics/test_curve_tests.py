from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from claim_files import KL, NO_KL, agrees
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lever_pipe.base import seeding
from lever_pipe.statistics.curve_tests import (
    compare_curves,
    f_test,
    flat_noise,
    paired_t,
    swap_test_of_spread,
)

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


def test_flips_of_the_published_differences() -> None:
    gaps = np.subtract(KL, NO_KL)
    sums = [abs(float(np.dot(signs, gaps))) for signs in product((1, -1), repeat=9)]
    expected = sum(value >= abs(float(gaps.sum())) - 1e-12 for value in sums) / 512
    assert compare_curves(KL, NO_KL).p_flip == pytest.approx(expected, rel=1e-12)
    assert 0.5 < expected < 0.65  # beside a t test of 0.563 and a Wilcoxon test of 0.57
    long = seeding.generator(6, "flips").normal(0.5, 1, 30)
    # 99,999 drawn signs err by less than 0.001
    assert compare_curves(long, np.zeros(30)).p_flip == pytest.approx(stats.ttest_1samp(long, 0).pvalue, abs=0.02)


def test_exchanging_the_curves_turns_the_difference() -> None:
    there, back = compare_curves(KL, NO_KL), compare_curves(NO_KL, KL)
    assert (there.mean, there.low, there.above) == (-back.mean, -back.high, back.below)
    for name in ("p_t", "p_wilcoxon", "p_sign", "p_f_of_changes", "p_levene_of_changes", "p_swap_of_changes"):
        assert getattr(there, name) == pytest.approx(getattr(back, name), rel=1e-9)  # two-sided


def test_the_t_interval_is_that_of_a_mean() -> None:
    found = compare_curves(KL, NO_KL)
    # t of 8 degrees at 97.5 % is 2.306 in any table
    assert (found.high - found.low) / 2 == pytest.approx(2.306 * found.sd / 3, rel=1e-3)


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


def test_short_or_unequal_curves_are_refused() -> None:
    for left, right in ((range(4), range(4)), (range(6), range(7))):
        with pytest.raises(ValueError, match="N >= 5"):
            compare_curves(list(left), list(right))


def test_long_curves_draw_their_swaps() -> None:
    generator = seeding.generator(4, "long")
    left, right = generator.normal(0, 1, 17), generator.normal(0, 1.3, 17)
    exact = swap_test_of_spread(left[:16], right[:16])
    drawn = swap_test_of_spread(left, right)
    assert drawn == swap_test_of_spread(left, right)
    assert 0 < exact <= 1
    # the 17th pair is equal, so that swapping it changes nothing: 65,536 draws err by at most 4 x 0.002
    left[16] = right[16] = float(left[:16].mean())
    gaps = _gaps(left, right)
    assert swap_test_of_spread(left, right) == pytest.approx(float(np.mean(gaps >= gaps[0] - 1e-12)), abs=0.008)


def _gaps(left: np.ndarray, right: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    swaps = np.array(list(product((False, True), repeat=16)))
    swaps = np.concatenate([swaps, np.zeros((len(swaps), 1), dtype=bool)], axis=1)
    sides = [np.where(swaps, a, b).std(axis=1, ddof=1) for a, b in ((right, left), (left, right))]
    return np.abs(sides[0] - sides[1])


def test_equal_curves_are_no_different() -> None:
    found = compare_curves(KL, KL)
    assert (found.mean, found.above, found.below) == (0, 0, 0)
    for name in ("p_t", "p_wilcoxon", "p_sign", "p_f_of_changes", "p_levene_of_changes", "p_swap_of_changes"):
        # F of equal variances is the median of its law
        assert getattr(found, name) == pytest.approx(1.0, rel=1e-9), name


def test_curves_without_variance() -> None:
    shifted = compare_curves([value + 0.5 for value in KL], KL)
    assert shifted.p_t == 0.0
    assert (shifted.low, shifted.high) == pytest.approx((0.5, 0.5))
    flat = compare_curves([1.0] * 9, KL)
    assert (flat.p_f_of_changes, flat.p_f_of_levels) == (0.0, 0.0)
    assert math.isnan(flat.variance_ratio_of_changes)
    assert compare_curves([1.0] * 9, [2.0] * 9).p_levene_of_changes == 1.0


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=8).filter(lambda of: np.std(of) > 1e-3))
def test_t_of_a_mean_is_that_of_scipy(differences: list[float]) -> None:
    expected = stats.ttest_1samp(differences, 0.0)
    t, p, half = paired_t(differences)
    assert (t, p) == pytest.approx((expected.statistic, expected.pvalue), rel=1e-9, abs=1e-12)
    assert np.mean(differences) + half == pytest.approx(expected.confidence_interval(0.95).high, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("differences", [[], [1.0], [1.0, math.inf], [1.0, math.nan]])
def test_nothing_is_known_of_a_single_difference(differences: list[float]) -> None:
    assert all(map(math.isnan, paired_t(differences)))
