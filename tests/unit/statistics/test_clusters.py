"""Questions of one image count together: by hand, against the plain result, and by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.base.seeding import generator
from lever_pipe.report.inference.blocks import Block
from lever_pipe.report.inference.estimates import Draws, Pair, differences, intervals
from lever_pipe.statistics.comparison import t_p_values
from lever_pipe.statistics.crossed import by_cluster, mean_accuracy, paired_difference

PAIRS = (0, 0, 1, 1, 2, 2, 3, 3)
"""Four images with two questions each."""


def block(values: np.ndarray) -> Block:
    """Return runs of equal seeds."""
    runs = tuple(f"preset~p/rce/seed~{s}/epoch~1" for s in range(len(values)))
    return Block("g", runs, ("1",) * values.shape[2], values)


def column(*values: float) -> np.ndarray:
    return np.array(values, dtype=float)[None, :, None]


def test_two_alike_questions_an_image_are_one_observation_by_hand() -> None:
    # Two images all right, two all wrong. As 8 questions: variance 2/7, error sqrt(2/7 / 8) = .189; as 4 images:
    # variance 1/3, error sqrt(1/3 / 4) = .289.
    right = column(1, 1, 1, 1, 0, 0, 0, 0)
    assert mean_accuracy(right).error == pytest.approx([(2 / 7 / 8) ** 0.5])
    found = mean_accuracy(by_cluster(right, np.array(PAIRS)))
    assert found.value == pytest.approx([0.5])
    assert found.error == pytest.approx([(1 / 3 / 4) ** 0.5])


def test_an_exchange_turns_a_whole_image_by_hand() -> None:
    # all ahead: 2 of 2^8 ways to exchange questions are as far from 0, and 2 of 2^4 ways to exchange images
    of = [Pair(block(column(*[1.0] * 8)), block(column(*[0.0] * 8)), [("x",)])]
    plain, clustered = (differences(of, Draws(0, 200, images=images))[0][0] for images in ((), PAIRS))
    assert (plain.p, clustered.p) == (2 / 2**8, 2 / 2**4)


def test_ignoring_images_gives_too_narrow_an_interval() -> None:
    scores, images = np.repeat(generator(0, "images").random((1, 200, 1)) < 0.5, 4, axis=1).astype(float), range(200)
    ((plain,),), ((clustered,),) = (
        intervals([block(scores)], Draws(0, 4000, images=of)) for of in ((), np.repeat(images, 4))
    )
    assert clustered.value == plain.value
    # four equal questions an image have 2 times the error of 800 independent ones
    assert (clustered.high - clustered.low) / (plain.high - plain.low) == pytest.approx(2, rel=0.05)


def test_how_many_questions_an_image_has_is_no_spread() -> None:
    # half of each image's answers are right, so that no other image says anything else
    scores, images = column(1, 0, 1, 0, 1, 0), np.array([0, 0, 0, 0, 1, 1])
    assert mean_accuracy(by_cluster(scores, images, 0.5)).error == pytest.approx([0], abs=1e-12)
    assert mean_accuracy(by_cluster(scores, images)).error > 0.1


@given(images=st.lists(st.integers(0, 5), min_size=2, max_size=30).filter(lambda of: len(set(of)) > 1))
def test_the_mean_stays_whatever_the_images(images: list[int]) -> None:
    scores = generator(0, "scores", len(images)).random((2, len(images), 3))
    numbers = np.unique(images, return_inverse=True)[1]
    for about in (0.0, scores.mean(axis=(0, 1))):
        assert by_cluster(scores, numbers, about).mean(axis=1) == pytest.approx(scores.mean(axis=1), abs=1e-12)


def test_where_no_image_repeats_every_bit_is_as_without_images() -> None:
    pair = Pair(*map(block, generator(0, "bits").random((2, 3, 40, 2))), [("x",)] * 2)
    images = generator(0, "order").permutation(40)
    with_images, plain = (Draws(0, 300, images=of) for of in ((*images, 0, 0), ()))
    assert differences([pair], with_images) == differences([pair], plain)
    assert intervals([pair.left], with_images) == intervals([pair.left], plain)


def test_a_true_null_is_rejected_as_often_as_the_level_says() -> None:
    # 600 pairs of runs over 60 images of 4 questions; what tells two runs apart is the image's
    random = generator(0, "null")
    gaps = np.repeat(random.normal(size=(60, 600)), 4, axis=0) + 0.5 * random.normal(size=(240, 600))
    left, right = gaps[None], np.zeros((1, 240, 600))
    numbers = np.repeat(np.arange(60), 4)
    plain = t_p_values(paired_difference(left, right, same_runs=True))
    clustered = t_p_values(paired_difference(by_cluster(left, numbers), by_cluster(right, numbers), same_runs=True))
    assert np.mean(plain < 0.05) > 0.2
    assert 0.025 < np.mean(clustered < 0.05) < 0.08  # 3 binomial errors about .05
