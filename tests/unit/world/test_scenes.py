"""Rendered images."""

from __future__ import annotations

import numpy as np
import pytest

from lever_pipe.world.lexicon import COLORS, COUNTS, KINDS
from lever_pipe.world.scenes import PALETTE, SIZE, render


def _pixels(kind: str, color: str, count: str, seed: int) -> np.ndarray:
    image = render(kind, color, count, np.random.default_rng(seed))
    assert image.mode == "RGB"
    return np.asarray(image)


def _n_blobs(mask: np.ndarray) -> int:
    """Flood fill: the number of 4-connected regions of 15 pixels or more; thin tips may split off."""
    todo = {(int(y), int(x)) for y, x in zip(*np.nonzero(mask), strict=True)}
    n = 0
    while todo:
        stack, size = [todo.pop()], 0
        while stack:
            y, x = stack.pop()
            size += 1
            for near in ((y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)):
                if near in todo:
                    todo.remove(near)
                    stack.append(near)
        n += size >= 15
    return n


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", COUNTS)
def test_an_image_shows_as_many_shapes_as_counted(kind: str, count: str) -> None:
    for seed in range(5):
        # Blue over a dark background: a pixel belongs to a shape when blue exceeds red by 80.
        pixels = _pixels(kind, "blue", count, seed).astype(int)
        assert pixels.shape == (SIZE, SIZE, 3)
        mask = pixels[..., 2] - pixels[..., 0] > 80
        assert _n_blobs(mask) == COUNTS.index(count) + 1


@pytest.mark.parametrize("color", COLORS)
def test_the_brightest_pixels_have_the_named_color(color: str) -> None:
    pixels = _pixels("box", color, "one", 3).astype(int).reshape(-1, 3)
    distance = np.abs(pixels - np.array(PALETTE[color])).max(axis=1)
    # Jitter moves a channel by at most 20; a box of radius 12 covers over 400 of 3136 pixels.
    assert (distance <= 20).sum() > 400
