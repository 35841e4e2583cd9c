"""Do 95 % intervals cover the truth in 95 % of repetitions, and do tests at 5 % reject a true null in 5 %?

The simulated answers resemble those of the embedded world: on most questions all runs of a policy agree, being right or
wrong (per-question standard deviation about .48), on the others each run answers anew (the interaction), and a run as
a whole is better or worse by .7 points (its seed). 2,000 repetitions form parallel cells; the standard error of
a share near 95 % is then .5 points.
"""

from __future__ import annotations

import numpy as np
import pytest

from lever_pipe.base.seeding import generator
from lever_pipe.statistics.comparison import sign_flip_p, t_p_values
from lever_pipe.statistics.crossed import (
    Estimates,
    bootstrap_bounds,
    difference_bounds,
    mean_accuracy,
    paired_difference,
)

REPETITIONS = 2000
TRUTH = 0.62
TOLERANCE = 1.5  # points, three standard errors
SEED_SD = 0.007


class Questions:
    """A new set of questions for each repetition: what all runs answer, and which questions each run answers anew."""

    def __init__(self, n: int, share_anew: float, *names: str | int) -> None:
        self.random = generator(0, "coverage", n, *names)
        self.right_NC = self.random.random((n, REPETITIONS)) < TRUTH
        self.anew_NC = self.random.random((n, REPETITIONS)) < share_anew
        self.share_anew = share_anew

    def runs(self, s: int, seed_sd: float) -> np.ndarray:
        """Return [S, N, C] answers of a policy with mean TRUTH whose runs vary by `seed_sd`."""
        shift_S1C = self.random.normal(0, seed_sd / self.share_anew, (s, 1, REPETITIONS))
        anew_SNC = self.random.random((s, *self.right_NC.shape)) < np.clip(TRUTH + shift_S1C, 0, 1)
        return np.where(self.anew_NC, anew_SNC, self.right_NC).astype(np.float64)


def coverage(estimates: Estimates, truth: float) -> float:
    """Return the percentage of intervals that cover the truth."""
    bounds = bootstrap_bounds(estimates, generator=generator(0, "coverage", "draws"), n_resamples=1000)
    return 100 * float(np.mean((bounds.low <= truth) & (truth <= bounds.high)))


@pytest.mark.parametrize("n", [100, 800])
def test_one_run_covers_over_questions(n: int) -> None:
    assert coverage(mean_accuracy(Questions(n, 1.0, "one").runs(1, 0.0)), TRUTH) == pytest.approx(95, abs=TOLERANCE)


@pytest.mark.parametrize("share_anew", [0.1, 0.35])
@pytest.mark.parametrize("seed_sd", [0.0, SEED_SD])
def test_three_runs_cover_over_questions_and_seeds(share_anew: float, seed_sd: float) -> None:
    # three runs cannot show that seeds do little, so the interval allows for more
    assert 95 < coverage(mean_accuracy(Questions(800, share_anew, "three").runs(3, seed_sd)), TRUTH) < 99


@pytest.mark.parametrize("s", [2, 3, 5])
def test_few_runs_cover_where_seeds_dominate(s: int) -> None:
    # runs vary by 5 points, three times the error over questions
    runs = Questions(800, 0.5, "dominate").runs(s, 0.05)
    assert coverage(mean_accuracy(runs), TRUTH) == pytest.approx(96, abs=TOLERANCE)


@pytest.mark.parametrize("seeds", [2, 3, 6])
@pytest.mark.parametrize("share", [0.3, 3.0, 30.0])
def test_no_level_is_exceeded_whatever_seeds_do(seeds: int, share: float) -> None:
    """Seeds make `share` of the variance that questions make; the standard errors are .22, .1 and .03 points.

    Student's t with Satterthwaite's degrees of freedom rejects in up to 13 % with two seeds and 8 % with three.
    """
    n, repetitions = 50, 10_000
    random = generator(0, "coverage", "levels", seeds, int(share * 10))
    runs = random.normal(0, (share * seeds / n) ** 0.5, (seeds, 1, repetitions))
    p = t_p_values(mean_accuracy(random.normal(0, 1, (n, repetitions)) + runs))
    for level, most in ((0.05, 0.056), (0.01, 0.013), (0.001, 0.002)):
        assert np.mean(p < level) < most


def test_one_run_a_side_rejects_a_true_null_in_one_of_twenty() -> None:
    # four shot counts: their mean has enough levels for an exact test to come near its level
    by_shots = [Questions(200, 0.3, "flip", shots) for shots in range(4)]
    left, right = (np.mean([questions.runs(1, 0.0) for questions in by_shots], axis=0) for _ in range(2))
    signs = generator(0, "coverage", "signs")
    p = np.array([sign_flip_p(differences, generator=signs) for differences in (left - right)[0].T])
    assert 100 * np.mean(p <= 0.05) == pytest.approx(5, abs=TOLERANCE)
    estimates = paired_difference(left, right, same_runs=False)
    assert coverage(estimates, 0.0) == pytest.approx(95, abs=TOLERANCE)


def test_three_runs_a_side_with_seed_variance() -> None:
    questions = Questions(800, 0.1, "size")
    estimates = paired_difference(questions.runs(3, SEED_SD), questions.runs(3, SEED_SD), same_runs=True)
    p, covered = t_p_values(estimates), coverage(estimates, 0.0)
    assert 1.5 < 100 * np.mean(p < 0.05) < 5  # three seeds cannot separate their effect from single answers
    assert covered < 98.5
    # test and interval agree: a rejected value is outside
    assert abs(covered - 100 * np.mean(p >= 0.05)) < 1


@pytest.mark.parametrize("same_runs", [True, False])
def test_three_runs_a_side_without_seed_variance_are_cautious(same_runs: bool) -> None:
    # three runs cannot show that seeds do nothing, so the interval allows for them
    questions = Questions(800, 0.1, "null")
    estimates = paired_difference(questions.runs(3, 0.0), questions.runs(3, 0.0), same_runs=same_runs)
    assert 0.3 < 100 * np.mean(t_p_values(estimates) < 0.05) < 5
    assert coverage(estimates, 0.0) > 95


@pytest.mark.parametrize(("gained", "lost"), [(0.0, 0.01), (0.005, 0.015), (0.01, 0.01), (0.0, 0.03)])
def test_rare_differences_are_covered_though_resampling_hardly_shows_them(gained: float, lost: float) -> None:
    random = generator(0, "coverage", "rare")
    sampled_NC = random.random((100, REPETITIONS))
    left = (sampled_NC >= lost).astype(np.float64)[None]
    right = ((sampled_NC >= lost) & (sampled_NC < 1 - gained) | (sampled_NC < lost)).astype(np.float64)[None]
    estimates, truth = paired_difference(left, right, same_runs=False), gained - lost
    plain = bootstrap_bounds(estimates, generator=generator(0, "coverage", "draws"), n_resamples=1000)
    wide = difference_bounds(estimates, plain)
    share = {name: np.mean((b.low <= truth) & (truth <= b.high)) for name, b in (("plain", plain), ("wide", wide))}
    assert 100 * share["wide"] > 95 - TOLERANCE
    assert share["plain"] < share["wide"]
