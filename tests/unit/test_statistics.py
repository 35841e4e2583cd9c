from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from lever_pipe import statistics
from lever_pipe.seeding import generator
from lever_pipe.statistics import (
    Interval,
    bootstrap_interval,
    mean_and_sd,
    paired_difference,
    standard_error_percent,
)


def test_mean_and_sd_by_hand() -> None:
    # 1, 2, 6: mean 3, squares 4 + 1 + 9 = 14, divisor 2.
    assert mean_and_sd([1.0, 2.0, 6.0]) == pytest.approx((3.0, math.sqrt(7)), abs=1e-12)
    mean, sd = mean_and_sd([4.0])
    assert mean == 4.0
    assert math.isnan(sd)
    with pytest.raises(ValueError, match="N >= 1"):
        mean_and_sd([])


def test_interval_covers_the_exact_resampling_distribution() -> None:
    # Of 0, 0, 1 there are 27 equally likely resamples with means k/3, k binomial(3, 1/3).
    # P(mean = 0) = 8/27 = .296 and P(mean <= 2/3) = 26/27 = .963: the exact 90 % limits are
    # 0 and 2/3.
    means = [sum(draw) / 3 for draw in itertools.product([0, 0, 1], repeat=3)]
    exact = np.quantile(means, [0.05, 0.95])
    found = bootstrap_interval([0.0, 0.0, 1.0], generator=generator(0, "exact"), n_resamples=4000, level=0.9)
    assert (found.low, found.high) == pytest.approx((0.0, 2 / 3), abs=1e-12)
    assert (found.low, found.high) == pytest.approx(tuple(exact), abs=1e-12)


def test_interval_has_the_width_of_the_normal_one() -> None:
    values = generator(0, "values").normal(size=1000)
    found = bootstrap_interval(values, generator=generator(0, "draws"))
    half = 1.96 * values.std() / math.sqrt(1000)
    # 2000 resamples place a 2.5 % quantile to about 5 % of the half width (one sd); allow four
    assert found.low == pytest.approx(values.mean() - half, abs=0.2 * half)
    assert found.high == pytest.approx(values.mean() + half, abs=0.2 * half)


def test_higher_levels_are_wider_and_constants_have_no_width() -> None:
    values = generator(0, "levels").random(50)
    narrow, wide = (bootstrap_interval(values, generator=generator(1), level=level) for level in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high
    assert bootstrap_interval([0.5] * 9, generator=generator(0)) == Interval(0.5, 0.5)


def test_same_stream_same_interval_and_chunks_do_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = generator(0, "values").random(37)
    whole = bootstrap_interval(values, generator=generator(2))
    assert whole == bootstrap_interval(values, generator=generator(2))
    assert whole != bootstrap_interval(values, generator=generator(3))
    monkeypatch.setattr(statistics, "_INDICES_PER_DRAW", 100)
    assert whole == bootstrap_interval(values, generator=generator(2))


def test_pairing_removes_the_difficulty_of_the_questions() -> None:
    random = generator(0, "paired")
    difficulty = random.normal(size=400)
    a = difficulty + 0.1 + 0.1 * random.normal(size=400)
    paired = paired_difference(a, difficulty, generator=generator(4))
    assert paired.difference == pytest.approx((a - difficulty).mean(), abs=1e-12)
    assert 0 < paired.low < paired.difference < paired.high
    alone = bootstrap_interval(a, generator=generator(4))
    assert paired.high - paired.low < (alone.high - alone.low) / 5  # noise .1 against 1


def test_paired_difference_is_the_interval_of_the_differences_and_turns_round() -> None:
    a, b = generator(0, "a").random(30), generator(0, "b").random(30)
    forward = paired_difference(a, b, generator=generator(5))
    interval = bootstrap_interval(a - b, generator=generator(5))
    assert (forward.low, forward.high) == (interval.low, interval.high)
    backward = paired_difference(b, a, generator=generator(5))
    assert backward.difference == -forward.difference
    assert backward.low == pytest.approx(-forward.high, abs=1e-12)
    same = paired_difference(a, a, generator=generator(5))
    assert (same.difference, same.low, same.high) == (0.0, 0.0, 0.0)


def test_standard_error_by_hand() -> None:
    # sqrt(.5 * .5 / 100) = .05; sqrt(.33 * .67 / 400) = .02351
    assert standard_error_percent(0.5, 100) == pytest.approx(5.0, abs=1e-12)
    assert standard_error_percent(0.33, 400) == pytest.approx(2.351, abs=5e-4)
    assert standard_error_percent(1.0, 7) == 0.0
    soft = generator(0, "soft").choice([0.0, 0.6, 1.0], size=500)
    by_sd = 100 * soft.std() / math.sqrt(500)
    assert standard_error_percent(float(soft.mean()), 500) > by_sd


def test_faults_are_named() -> None:
    with pytest.raises(ValueError, match="pair question by question, got 2 and 3"):
        paired_difference([1.0, 2.0], [1.0, 2.0, 3.0], generator=generator(0))
    with pytest.raises(ValueError, match=r"values_N must be \[N\]"):
        bootstrap_interval(np.zeros((2, 2)), generator=generator(0))
    for arguments in ({"level": 1.0}, {"n_resamples": 0}):
        with pytest.raises(ValueError, match="need n_resamples"):
            bootstrap_interval([1.0], generator=generator(0), **arguments)
    for accuracy, n in ((1.2, 5), (0.5, 0)):
        with pytest.raises(ValueError, match="need accuracy"):
            standard_error_percent(accuracy, n)
