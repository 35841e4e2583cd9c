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
