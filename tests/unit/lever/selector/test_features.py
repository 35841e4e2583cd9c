from __future__ import annotations

import numpy as np

from lever_pipe.lever.selector.embeddings import fuse, side_by_side, unit


def test_fusion_of_two_known_vectors() -> None:
    # norm((3, 4)) = (.6, .8); norm((0, 2)) = (0, 1); mean (.3, .9), length sqrt(.9)
    fused = fuse(np.array([[3, 4]], dtype=np.float32), np.array([[0, 2]], dtype=np.float32))
    np.testing.assert_allclose(fused, [[0.3 / np.sqrt(0.9), 0.9 / np.sqrt(0.9)]], rtol=1e-6)
    assert fused.dtype == np.float32
    both = side_by_side(np.array([[3, 4]], dtype=np.float32), np.array([[0, 2]], dtype=np.float32))
    np.testing.assert_allclose(both, np.array([[0.6, 0.8, 0, 1]]) / np.sqrt(2), rtol=1e-6)
    assert both.dtype == np.float32
    assert np.array_equal(unit(np.zeros((1, 3), dtype=np.float32)), np.zeros((1, 3), dtype=np.float32))


def test_side_by_side_the_parts_are_of_one_length_and_can_be_told_apart() -> None:
    rng = np.random.default_rng(0)
    image, question = (rng.standard_normal((20, 5)).astype(np.float32) for _ in range(2))
    both = side_by_side(image, question)
    np.testing.assert_allclose(np.linalg.norm(both, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(side_by_side(100 * image, 0.01 * question), both, rtol=1e-4, atol=1e-6)
    # A product of two is the mean of both similarities, as of two fused ones it is not.
    cosines = unit(image) @ unit(image).T + unit(question) @ unit(question).T
    np.testing.assert_allclose(both @ both.T, cosines / 2, atol=1e-6)
    assert not np.allclose(side_by_side(question, image), both)
    np.testing.assert_allclose(fuse(question, image), fuse(image, question), rtol=1e-5)
