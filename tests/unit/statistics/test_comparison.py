"""p values of paired differences, families of them, and the detectable differences of a comparison."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lever_pipe.base.seeding import generator
from lever_pipe.base.shapes import ShapeError
from lever_pipe.statistics import comparison
from lever_pipe.statistics.comparison import detectable, holm, sign_flip_p, t_p_values
from lever_pipe.statistics.crossed import (
    Bounds,
    Estimates,
    bootstrap_bounds,
    difference_bounds,
    mean_accuracy,
    paired_difference,
)

TENTHS = st.lists(st.integers(-10, 10), min_size=1, max_size=9)


def flip(differences: object, **options: int) -> float:
    return sign_flip_p(differences, generator=generator(0, "signs"), **options)  # type: ignore[arg-type]


def enumerated(differences: list[float]) -> float:
    """Return the p value by trying every sign."""
    observed = abs(sum(differences))
    sums = [abs(sum(s * d for s, d in zip(signs, differences, strict=True))) for signs in _signs(len(differences))]
    return float(np.mean([total >= observed - 1e-9 for total in sums]))


def _signs(n: int) -> itertools.product[tuple[int, ...]]:
    return itertools.product((-1, 1), repeat=n)


@pytest.mark.parametrize("tried", [comparison.FLIPPED_AT_MOST, 0])
@given(tenths=TENTHS)
def test_trying_and_counting_agree_with_brute_force(tried: int, tenths: list[int]) -> None:
    differences = [value / 10 for value in tenths]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "FLIPPED_AT_MOST", tried)
        assert flip(differences) == pytest.approx(enumerated(differences), abs=1e-12)


@given(TENTHS)
def test_sign_order_and_zeros_do_not_matter(tenths: list[int]) -> None:
    differences = np.array(tenths) / 10
    p = flip(differences)
    assert 0 < p <= 1
    for other in (-differences, differences[::-1], np.append(differences, [0.0, 0.0])):
        assert flip(other) == pytest.approx(p, abs=1e-12)


def test_equal_sizes_are_the_sign_test() -> None:
    differences = [0.3] * 14 + [-0.3] * 4
    assert flip(differences) == pytest.approx(stats.binomtest(14, 18).pvalue, abs=1e-12)


def test_many_questions_approach_the_normal() -> None:
    levels = np.array([-1.0, -0.9, -0.3, 0.0, 0.0, 0.3, 0.6, 1.0])
    differences = generator(0, "many").choice(levels, 800) * generator(0, "kept").integers(0, 2, 800)
    z = differences.sum() / np.sqrt((differences**2).sum())
    # the lattice of tenths is fine relative to a standard deviation of about 10: half a step is a small correction
    assert flip(differences) == pytest.approx(2 * stats.norm.sf(abs(z)), abs=0.01)


def test_the_smallest_p_is_one_assignment_and_its_mirror() -> None:
    assert flip([0.1] * 200) == 2.0**-199
    assert flip([0.0, 0.0]) == 1.0
    assert flip([0.1, -0.1]) == 1.0


def test_signs_are_drawn_where_nothing_can_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "FLIPPED_AT_MOST", 0)
    differences = generator(0, "real").normal(0.3, 1, 12)  # on no lattice
    exact = enumerated(list(differences))
    # one standard error of a share near .3 over 99 999 draws is .0015
    assert flip(differences) == pytest.approx(exact, abs=0.006)
    assert flip(differences) == flip(differences)
    # of 2^20 ways only two lead as far; 99 draws meet neither, and the assignment seen counts
    assert flip(np.sqrt(np.arange(2, 22)), n_draws=99) == 1 / 100


def test_drawing_agrees_with_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    differences = np.round(generator(0, "both").normal(0.1, 0.5, 60), 1)
    counted = flip(differences)
    monkeypatch.setattr(comparison, "_LONGEST_LATTICE", 1)
    assert flip(differences) != counted
    assert flip(differences) == pytest.approx(counted, abs=0.006)


def test_a_single_question_decides_nothing() -> None:
    assert flip([1.0]) == 1.0
    for shapeless in ([], [[1.0]]):
        with pytest.raises(ShapeError, match="differences_N"):
            flip(shapeless)


def test_one_run_by_student_is_the_paired_t_test() -> None:
    left, right = generator(0, "t").random((2, 40))
    estimates = paired_difference(left[None, :, None], right[None, :, None], same_runs=True)
    assert t_p_values(estimates) == pytest.approx([stats.ttest_rel(left, right).pvalue], rel=1e-9)


def test_no_difference_and_no_error() -> None:
    same = np.ones((2, 5, 1))
    assert t_p_values(paired_difference(same, same, same_runs=True))[0] == 1
    # without an error Student's t would be sure of it, but five questions can be exchanged in 2^5 ways
    assert t_p_values(paired_difference(same, 0 * same, same_runs=True))[0] == 2.0**-4


def test_a_handful_of_differing_questions_rejects_nothing() -> None:
    left, right = np.ones((3, 400, 6)), np.ones((3, 400, 6))
    for cell in range(6):
        right[:, : cell + 2, cell] = 0  # 2 to 7 questions differ, equally in all three runs
    found = paired_difference(left, right, same_runs=True)
    p, student = t_p_values(found), 2 * stats.t.sf(found.value / found.error, 399)
    floor = 2.0 ** -np.arange(1, 7)
    assert p == pytest.approx(np.maximum(floor, student), rel=1e-9)
    assert (p > 0.05).tolist() == [True] * 4 + [False] * 2
    assert student[3] < 0.05  # five equal questions: t(399) = 2.24 would have rejected


def test_holm_against_statsmodels(monkeypatch: pytest.MonkeyPatch) -> None:
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    monkeypatch.setattr("gc.collect", lambda: 0)  # the oracle's, a tenth of a second at each call

    @given(st.lists(st.floats(0, 1), max_size=12))
    def agrees(p: list[float]) -> None:
        oracle = multitest.multipletests(p, method="holm")[1] if p else []
        assert holm(p) == pytest.approx(np.asarray(oracle, dtype=float), abs=1e-12)

    agrees()


def test_holm_by_hand() -> None:
    # sorted .01 .02 .04: times 3, 2, 1 gives .03 .04 .04
    assert holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04], abs=1e-12)
    # .02 * 2 = .04 must not fall below .03 * 1
    assert holm([0.03, 0.02]) == pytest.approx([0.04, 0.04], abs=1e-12)
    assert holm([0.9, 0.8]) == pytest.approx([1, 1], abs=1e-12)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0, 1))
def test_a_larger_family_never_lowers_a_p(p: list[float], further: float) -> None:
    assert (holm([*p, further])[: len(p)] >= holm(p) - 1e-12).all()
    assert (holm(p) >= np.array(p) - 1e-12).all()


def test_the_detectable_difference_has_its_power() -> None:
    power = pytest.importorskip("statsmodels.stats.power")
    values = generator(0, "power").normal(0, 0.3, (1, 60, 1))
    effect = power.TTestPower().solve_power(nobs=60, alpha=0.05, power=0.8)
    estimates = mean_accuracy(values)
    half = stats.t.ppf(0.975, 59) * estimates.error
    bounds = Bounds(estimates.value - half, estimates.value + half)
    found = detectable(estimates, bounds)
    # shifting Student's t by its quantile stands for the noncentral t, within 1 % at 59 degrees of freedom
    assert found == pytest.approx([effect * values.std(ddof=1)], rel=0.01)
    assert detectable(estimates, bounds, power=0.9) > found


def whole(left: np.ndarray, right: np.ndarray) -> tuple[Estimates, Bounds]:
    """Return the difference of paired runs with the interval that a row of `comparisons.csv` has."""
    estimates = paired_difference(left, right, same_runs=True)
    plain = bootstrap_bounds(estimates, generator=generator(0, "detect"), n_resamples=200)
    return estimates, difference_bounds(estimates, plain)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(2, 60), st.integers(0, 12), st.integers(0, 99))
def test_no_detectable_difference_lies_within_the_interval(s: int, n: int, n_differing: int, seed: int) -> None:
    random = generator(seed, "answers")
    right = random.integers(0, 2, (s, n, 3)).astype(float)
    left = right.copy()
    left[:, :n_differing] = random.integers(0, 11, left[:, :n_differing].shape) / 10
    estimates, bounds = whole(left, right)
    assert (detectable(estimates, bounds) >= (bounds.high - bounds.low) / 2 - 1e-12).all()


def test_a_rare_difference_is_found_at_its_power() -> None:
    same = np.ones((1, 200, 1))
    (share,) = detectable(*whole(same, same))
    turned = generator(0, "turned").random((20_000, 200)) < share  # wrong on one side, right on the other
    n_differing = turned.sum(axis=1)
    # all of them go one way: 2 of 2^k, below 5 % from six on; a share of 20,000 has an error of .3 points
    assert np.mean(2.0 ** (1 - n_differing) < 0.05) == pytest.approx(0.8, abs=0.01)
    assert detectable(*whole(same[:, :5], same[:, :5])) == pytest.approx([1.0])  # five answers decide nothing
