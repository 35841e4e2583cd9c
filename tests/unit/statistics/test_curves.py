from __future__ import annotations

import math

import numpy as np
import pytest
from claim_files import KL, NO_KL, STEPS
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lever_pipe.base import seeding
from lever_pipe.statistics.curves import drawdowns, f_test, first_reaching, flat_noise, paired_t


def test_the_published_rewards_are_means_over_forty_episodes() -> None:
    """Three decimals; a mean of n rewards, each a multiple of 0.1, is a multiple of 0.1 / n (GRIM, Brown 2017)."""
    rewards = np.array(NO_KL + KL)
    fits = [n for n in range(1, 41) if np.all(np.abs(rewards - np.round(rewards * n / 0.1) * 0.1 / n) <= 0.0005 + 1e-9)]
    assert fits == [40]


@given(st.lists(st.integers(500, 3000).map(lambda n: n / 1000), min_size=1, max_size=12))
def test_drawdown_is_the_largest_fall_between_any_two(values: list[float]) -> None:
    falls = [values[i] - values[j] for i in range(len(values)) for j in range(i, len(values))]
    assert drawdowns(np.array([values]))[0] == max(falls)


def test_first_reaching() -> None:
    assert first_reaching(STEPS, KL, 2.0) == 40
    assert first_reaching(STEPS, NO_KL, 2.14) == 10  # at least
    assert first_reaching(STEPS, KL, 2.2) is None


def test_f_test_against_its_law() -> None:
    generator = seeding.generator(0, "f_test")
    left, right = generator.normal(0, 1, 9), generator.normal(0, 2, 7)
    ratio = np.var(left, ddof=1) / np.var(right, ddof=1)
    assert f_test(left, right) == pytest.approx(2 * stats.f(8, 6).cdf(ratio), rel=1e-12)
    assert f_test(right, left) == pytest.approx(f_test(left, right), rel=1e-9)
    assert f_test(left, left) == pytest.approx(1.0, rel=1e-12)
    assert f_test([1.0, 1.0], left) == 0.0  # one side does not vary


def test_flat_noise_of_the_published_size() -> None:
    noise = flat_noise(9, 0.13, seeding.generator(3, "flat"))
    # printed with two decimals; Monte Carlo adds 0.0011
    assert noise.drawdown_draws.mean() == pytest.approx(0.34, abs=0.0065)
    assert noise.chance_of_drawdown(0.390) == pytest.approx(0.31, abs=0.0065)
    assert noise.chance_of_drawdown(0.224) == pytest.approx(0.86, abs=0.0065)


def test_flat_noise_of_two_values_is_known_exactly() -> None:
    # a fall of two values is max(0, x1 - x2) with x1 - x2 normal of sd sqrt(2) sd; its mean is sd / sqrt(pi)
    noise = flat_noise(2, 0.5, seeding.generator(1, "flat"))
    assert noise.drawdown_draws.mean() == pytest.approx(0.5 / math.sqrt(math.pi), abs=0.004)  # 4 standard errors
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


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=8).filter(lambda of: np.std(of) > 1e-3))
def test_t_of_a_mean_is_that_of_scipy(differences: list[float]) -> None:
    expected = stats.ttest_1samp(differences, 0.0)
    t, p, half = paired_t(differences)
    assert (t, p) == pytest.approx((expected.statistic, expected.pvalue), rel=1e-9, abs=1e-12)
    assert np.mean(differences) + half == pytest.approx(expected.confidence_interval(0.95).high, rel=1e-9, abs=1e-9)


def test_equal_differences_have_no_spread() -> None:
    assert paired_t([0.0, 0.0, 0.0])[1:] == (1.0, 0.0)
    assert paired_t([0.5, 0.5, 0.5]) == (math.inf, 0.0, 0.0)


@pytest.mark.parametrize("differences", [[], [1.0], [1.0, math.inf], [1.0, math.nan]])
def test_nothing_is_known_of_a_single_difference(differences: list[float]) -> None:
    assert all(map(math.isnan, paired_t(differences)))
