"""The error of a mean over runs and questions, and the intervals made of it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lever_pipe.base.seeding import generator
from lever_pipe.base.shapes import ShapeError
from lever_pipe.statistics import crossed
from lever_pipe.statistics.crossed import (
    Bounds,
    Estimates,
    accuracy_bounds,
    beyond,
    bootstrap_bounds,
    difference_bounds,
    mean_accuracy,
    paired_difference,
    reach,
    side_by_side,
)


def scores(*shape: int, name: str = "scores") -> np.ndarray:
    """Return soft accuracies with effects of run and question."""
    random = generator(0, name, *shape)
    s, n, c = shape
    effects = random.normal(0, 0.05, (s, 1, c)) + random.normal(0, 0.3, (1, n, c))
    return 0.5 + effects + random.normal(0, 0.1, shape)


def bounds_of(estimates: Estimates, name: str = "draws", **options: float) -> Bounds:
    return bootstrap_bounds(estimates, generator=generator(0, name), **options)  # type: ignore[arg-type]


def test_two_runs_of_two_questions_by_hand() -> None:
    # Runs 0, 0.6 and 0.2, 1: means .3 and .6 (MSA = 2 * 2 * .15^2 = .09), question means .1 and .8
    # (MSB = 2 * 2 * .35^2 = .49), rest +-.05 (MSE = 4 * .0025 = .01).
    found = mean_accuracy(np.array([[[0.0], [0.6]], [[0.2], [1.0]]]))
    assert found.value == pytest.approx([0.45], abs=1e-12)
    # (MSA + MSB - MSE) / 4 = .1425
    assert found.error**2 == pytest.approx([0.1425], abs=1e-12)
    assert found.by_question == pytest.approx(np.array([[0.1], [0.8]]), abs=1e-12)


def test_an_interval_of_few_questions_is_as_wide_as_that_of_t() -> None:
    # Eight normal scores have no skewness, and their kurtosis of -.85 moves the quantile of a resampled mean by .4 %
    # (Edgeworth: kappa (z^2 - 3) / (24 n)); with the spread of divisor n the interval would be 6.5 % narrower.
    found = mean_accuracy(stats.norm.ppf((np.arange(8)[None, :, None] + 0.5) / 8))
    low, high = bounds_of(found, n_resamples=100_000)
    assert high - low == pytest.approx(2 * stats.t(7).ppf(0.975) * found.error, rel=0.015)


def test_the_mean_squares_are_those_of_an_analysis_of_variance() -> None:
    formula = pytest.importorskip("statsmodels.formula.api")
    anova = pytest.importorskip("statsmodels.stats.anova")
    import pandas as pd

    values = scores(3, 20, 1)
    run, question = np.meshgrid(range(3), range(20), indexing="ij")
    frame = pd.DataFrame({"y": values.ravel(), "run": run.ravel(), "question": question.ravel()})
    squares = anova.anova_lm(formula.ols("y ~ C(run) + C(question)", frame).fit())["mean_sq"]
    a, b, e = squares["C(run)"], squares["C(question)"], squares["Residual"]
    assert a > e  # else the component of the runs counts as zero
    found = mean_accuracy(values)
    assert found.error**2 == pytest.approx([(a + b - e) / 60], rel=1e-9)
    # drawn anew: possible mean squares of three runs and twenty questions in another draw
    random, n = generator(0, "fiducial"), 400_000
    questions, runs = b * 19 / random.chisquare(19, n), np.maximum(a * 2 / random.chisquare(2, n) - e, 0)
    for distance in (0.05, 0.1, 0.2, 0.4):
        chance = stats.norm.sf(distance / np.sqrt((questions + runs) / 60)).mean()
        assert beyond(found, np.array([distance])) == pytest.approx([chance], rel=0.03)


def test_one_run_is_the_standard_error_of_its_questions() -> None:
    values = scores(1, 30, 2)
    found = mean_accuracy(values)
    assert found.error == pytest.approx(stats.sem(values[0], axis=0), rel=1e-12)
    for t in (0.5, 2.0, 4.0):
        assert beyond(found, t * found.error) == pytest.approx([stats.t.sf(t, 29)] * 2, rel=1e-9)


def test_runs_that_differ_by_a_constant_add_its_variance() -> None:
    values = np.repeat(scores(1, 30, 1), 3, axis=0)
    shifts = np.array([-0.3, 0.1, 0.2])
    found, single = mean_accuracy(values + shifts[:, None, None]), mean_accuracy(values)
    # no rest: MSA / (S N) is the variance of three means over 3, that is .07 / 3
    assert found.error**2 - single.error**2 == pytest.approx([shifts.var(ddof=1) / 3], rel=1e-9)


def test_the_error_is_never_below_that_of_the_questions_alone() -> None:
    values = scores(3, 40, 50)
    values = values - values.mean(axis=1, keepdims=True)  # runs agree to the digit: an estimated variance below zero
    found = mean_accuracy(values)
    alone = stats.sem(values.mean(axis=0), axis=0)
    assert found.error == pytest.approx(alone, rel=1e-9)
    assert np.isfinite(reach(found, 0.975)).all()


def test_few_runs_count_as_few_only_where_they_differ() -> None:
    questions = generator(0, "hard").integers(0, 2, (1, 500, 1)).astype(float)
    alike = mean_accuracy(np.repeat(questions, 3, axis=0))
    apart = mean_accuracy(np.repeat(questions, 3, axis=0) + np.array([-1.0, 0.0, 1.0])[:, None, None])
    for share in (0.8, 0.975, 0.9995):
        assert reach(alike, share) / alike.error == pytest.approx([stats.t.ppf(share, 499)], rel=1e-6)
        assert reach(apart, share) / apart.error == pytest.approx([stats.t.ppf(share, 2)], rel=0.01)


@pytest.mark.parametrize("s", [1, 2, 3])
@pytest.mark.parametrize("share", [0.8, 0.975, 0.9995])
def test_beyond_its_reach_lies_what_the_share_leaves(s: int, share: float) -> None:
    values = scores(s, 40, 5)
    values[:, :, 0] = 0.5  # without error
    found = mean_accuracy(values)
    far = reach(found, share)
    assert far[0] == 0
    assert beyond(found, far)[1:] == pytest.approx(np.full(4, 1 - share), rel=1e-9)


def test_single_answers_count_where_the_questions_seem_alike() -> None:
    # Runs 0, 1 and 1, 0: all means are .5 (MSA = MSB = 0), rest +-.5 with one degree of freedom: MSE = 1.
    found = mean_accuracy(np.array([[[0.0], [1.0]], [[1.0], [0.0]]]))
    assert found.error**2 == pytest.approx([0.25], abs=1e-12)
    assert reach(found, 0.975) >= stats.t.ppf(0.975, 1) * 0.5 - 1e-6


def test_what_both_sides_share_cancels() -> None:
    left, right = scores(3, 50, 2, name="left"), scores(3, 50, 2, name="right")
    shared = scores(3, 50, 2, name="shared")
    plain, loaded = (paired_difference(left + x, right + x, same_runs=True) for x in (0 * shared, shared))
    for field in ("value", "error", "scales"):
        assert getattr(loaded, field) == pytest.approx(getattr(plain, field), rel=1e-9)
    assert plain.value == pytest.approx((left - right).mean(axis=(0, 1)), abs=1e-12)


def test_other_runs_share_the_questions_only() -> None:
    left, right = scores(3, 50, 1, name="left"), scores(4, 50, 1, name="right")
    question = scores(1, 50, 1, name="question")
    plain = paired_difference(left, right, same_runs=False)
    loaded = paired_difference(left + question, right + question, same_runs=False)
    assert loaded.error == pytest.approx(plain.error, rel=1e-9)
    shifts = 10 * np.array([-1.0, 0.0, 1.0])[:, None, None]  # large relative to the rest
    moved = paired_difference(left + shifts, right, same_runs=False)
    assert moved.error**2 == pytest.approx([100 / 3], rel=0.05)  # variance 100 over 3 runs; the rest adds a little
    assert reach(moved, 0.975) / moved.error == pytest.approx([stats.t.ppf(0.975, 2)], rel=0.05)


def test_a_single_run_counts_as_fixed() -> None:
    left, right = scores(3, 50, 1, name="left"), scores(1, 50, 1, name="right")
    plain, moved = (paired_difference(left, right + x, same_runs=False) for x in (0.0, 7.0))
    assert moved.error == pytest.approx(plain.error, rel=1e-9)
    assert moved.value == pytest.approx(plain.value - 7, rel=1e-12)
    twins = [paired_difference(left[:1], right, same_runs=same) for same in (True, False)]
    assert twins[0].error == pytest.approx(twins[1].error, rel=1e-12)


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), s=st.integers(1, 4), n=st.integers(2, 8), factor=st.floats(0.1, 10))
def test_order_sign_and_unit_do_not_matter(seed: int, s: int, n: int, factor: float) -> None:
    random = np.random.default_rng(seed)
    left, right = random.random((2, s, n, 3))
    found = paired_difference(left, right, same_runs=True)
    turned = paired_difference(right, left, same_runs=True)
    runs, questions = random.permutation(s), random.permutation(n)
    mixed = paired_difference(left[runs][:, questions], right[runs][:, questions], same_runs=True)
    scaled = paired_difference(factor * left, factor * right, same_runs=True)
    assert turned.value == pytest.approx(-found.value, abs=1e-12)
    for other, unit in ((turned, 1.0), (mixed, 1.0), (scaled, factor)):
        assert other.error == pytest.approx(unit * found.error, rel=1e-6, abs=1e-12)
        assert reach(other, 0.975) == pytest.approx(unit * reach(found, 0.975), rel=1e-6, abs=1e-12)


def test_cells_stand_side_by_side_without_a_trace() -> None:
    parts = [mean_accuracy(scores(s, 40, c, name="parts")) for s, c in ((1, 2), (3, 1), (2, 3))]
    together, alone = bounds_of(side_by_side(parts)), [bounds_of(part) for part in parts]
    for end in (0, 1):
        # sums of 40 products may be added in another order
        assert together[end] == pytest.approx(np.concatenate([bounds[end] for bounds in alone]), abs=1e-12)


def test_resampling_meets_the_exact_distribution() -> None:
    # Of 0, 0, 1 there are 27 equally likely resamples with means k/3: the exact 90 % limits are 0 and 2/3.
    exact = np.quantile([sum(draw) / 3 for draw in itertools.product([0, 0, 1], repeat=3)], [0.05, 0.95])
    means = crossed.resampled_means(np.array([[0.0], [0.0], [1.0]]), generator(0, "exact"), 4000)
    assert np.quantile(means, [0.05, 0.95]) == pytest.approx(exact, abs=1e-12)
    assert means.mean() == pytest.approx(1 / 3, abs=0.02)  # four standard errors of .27 / sqrt(4000)


def test_bounds_are_expanded_percentiles() -> None:
    values = generator(0, "skewed").exponential(size=60)
    found = bounds_of(mean_accuracy(values[None, :, None]), n_resamples=20_000)
    oracle = stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", rng=generator(0, "oracle"), vectorized=True
    ).confidence_interval
    # t(59) against z, and the spread with n - 1 against the spread with n
    expansion = stats.t.ppf(0.975, 59) / stats.norm.ppf(0.975) * np.sqrt(60 / 59)
    ends = [values.mean() + expansion * (end - values.mean()) for end in oracle]
    # 20 000 draws place a 2.5 % quantile to about 1 % of the half width (one sd); two such, allow four
    half = (ends[1] - ends[0]) / 2
    assert [found.low[0], found.high[0]] == pytest.approx(ends, abs=0.06 * half)
    assert found.high[0] - values.mean() > values.mean() - found.low[0]  # skewed as the data are


def test_several_runs_widen_by_student() -> None:
    shifts = np.array([-0.2, 0.0, 0.2])[:, None, None]
    values = np.repeat(scores(1, 400, 1), 3, axis=0) + shifts
    estimates = mean_accuracy(values)
    found = bounds_of(estimates)
    half = reach(estimates, 0.975)
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.05)  # 10 000 draws place each end to 1.5 %
    assert half[0] > 3.5 * 0.2 / np.sqrt(3)  # nearer to t(2) = 4.3 than to z = 1.96


def test_questions_without_spread_have_a_symmetric_interval_of_the_runs() -> None:
    values = np.array([0.1, 0.2, 0.3])[:, None, None] * np.ones((3, 50, 1))
    found = bounds_of(mean_accuracy(values))
    half = stats.t.ppf(0.975, 2) * 0.1 / np.sqrt(3)
    assert [found.low[0], found.high[0]] == pytest.approx([0.2 - half, 0.2 + half], abs=1e-9)


def test_levels_widths_and_streams() -> None:
    estimates = mean_accuracy(scores(3, 50, 1))
    narrow, wide = (bounds_of(estimates, level=level) for level in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high
    assert bounds_of(estimates).low == bounds_of(estimates).low
    assert bounds_of(estimates).low != bounds_of(estimates, "others").low
    flat = bounds_of(mean_accuracy(np.full((1, 9, 1), 0.5)))
    assert [flat.low[0], flat.high[0]] == [0.5, 0.5]


def test_weights_at_a_time_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    estimates = mean_accuracy(scores(1, 37, 2))
    whole = bounds_of(estimates, n_resamples=2000)
    monkeypatch.setattr(crossed, "_WEIGHTS_AT_A_TIME", 100)
    assert bounds_of(estimates, n_resamples=2000).low == pytest.approx(whole.low, abs=1e-12)  # other order of sums


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_answers_without_spread_have_the_exact_bound(share: float) -> None:
    estimates = mean_accuracy(np.full((2, 64, 1), share))
    found = accuracy_bounds(estimates, bounds_of(estimates))
    exact = stats.binomtest(round(64 * share), 64).proportion_ci(0.95, method="exact")
    assert [found.low[0], found.high[0]] == pytest.approx([exact.low, exact.high], abs=1e-12)


def differing(n: int, ahead: int, n_negative: int, runs: int = 1, size: float = 1.0) -> Estimates:
    """Return the difference of two policies; the left is better and worse on these numbers of n questions."""
    left, right = np.full((runs, n, 1), size), np.full((runs, n, 1), size)
    right[:, :ahead] = 0
    left[:, ahead : ahead + n_negative] = 0
    return paired_difference(left, right, same_runs=True)


def bounds_of_difference(estimates: Estimates) -> list[float]:
    found = difference_bounds(estimates, bounds_of(estimates))
    return [float(found.low[0]), float(found.high[0])]


@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("n", [2, 66, 800])
def test_equal_answers_leave_the_exact_bound_on_their_difference(n: int, runs: int) -> None:
    estimates = differing(n, 0, 0, runs)
    plain = bounds_of(estimates)
    assert (plain.low[0], plain.high[0]) == (0, 0)
    exact = 1 - 0.025 ** (1 / n)
    assert bounds_of_difference(estimates) == pytest.approx([-exact, exact], abs=1e-12)


def test_one_differing_question_does_not_exclude_a_gain() -> None:
    # resampling a single loss of 66 never shows a gain: its interval ends at 0, but for its expansion
    estimates = differing(66, 0, 1)
    assert bounds_of(estimates).high[0] < 0.001
    most_negative = stats.binomtest(1, 66).proportion_ci(0.95, method="exact").high
    most_positive = stats.binomtest(0, 66).proportion_ci(0.95, method="exact").high
    assert bounds_of_difference(estimates) == pytest.approx([-most_negative, most_positive], abs=1e-12)
    assert bounds_of_difference(differing(66, 1, 0)) == pytest.approx([-most_positive, most_negative], abs=1e-12)
    # a loss of a fraction of a point is invisible in whole points
    assert bounds_of_difference(differing(66, 0, 1, size=0.25)) == pytest.approx(
        [-most_negative, most_positive], abs=1e-12
    )


@pytest.mark.parametrize("size", [1.0, 0.25])
def test_questions_that_all_differ_alike_leave_room_for_others(size: float) -> None:
    estimates = differing(20, 0, 20, size=size)
    share = 0.025 ** (1 / 20)  # were fewer lost, twenty losses out of twenty would happen in less than 2.5 %
    expected = [max(-1.0, -size * share - (1 - share)), -size * share + (1 - share)]
    assert bounds_of_difference(estimates) == pytest.approx(expected, abs=1e-12)
    assert bounds_of(estimates).low[0] == bounds_of(estimates).high[0]


@given(n=st.integers(2, 120), data=st.data())
@settings(max_examples=40)
def test_the_interval_of_few_differences_agrees_with_their_test(n: int, data: st.DataObject) -> None:
    ahead = data.draw(st.integers(0, min(n, 8)))
    n_negative = data.draw(st.integers(0, min(n - ahead, 8)))
    estimates = differing(n, ahead, n_negative)
    low, high = bounds_of_difference(estimates)
    assert -1 <= low < high <= 1
    plain = bounds_of(estimates)
    assert low <= max(plain.low[0], -1) <= min(plain.high[0], 1) <= high
    if ahead + n_negative <= 5:  # exact signs cannot reject: 2^-4 > 0.05
        assert low < 0 < high
    elif max(ahead, n_negative) < n:
        assert [low, high] == pytest.approx([max(plain.low[0], -1), min(plain.high[0], 1)], abs=1e-12)


def test_accuracies_stay_between_nought_and_one() -> None:
    values = np.ones((1, 8, 1))
    values[0, 0] = 0
    estimates = mean_accuracy(values)
    plain = bounds_of(estimates)
    found = accuracy_bounds(estimates, plain)
    assert plain.high[0] > 1  # expanded beyond the range of an accuracy
    assert found.high[0] == 1
    assert found.low[0] == plain.low[0]


def test_problems_are_named() -> None:
    with pytest.raises(ShapeError, match=r"accuracies_SNC must be \[S, N, C\]"):
        mean_accuracy(np.zeros((3, 4)))
    with pytest.raises(ShapeError, match="N >= 2"):
        mean_accuracy(np.zeros((3, 1, 1)))
    with pytest.raises(ShapeError, match=r"must pair, got \[1, 4, 1\] and \[1, 5, 1\]"):
        paired_difference(np.zeros((1, 4, 1)), np.zeros((1, 5, 1)), same_runs=False)
    with pytest.raises(ShapeError, match="must pair"):
        paired_difference(np.zeros((1, 4, 1)), np.zeros((2, 4, 1)), same_runs=True)
    estimates = mean_accuracy(np.zeros((1, 4, 1)))
    for options in ({"level": 1.0}, {"n_resamples": 0}):
        with pytest.raises(ValueError, match="need n_resamples"):
            bounds_of(estimates, **options)
