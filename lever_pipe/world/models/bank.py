"""Images to train on, by scene."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from lever_pipe.base.seeding import generator
from lever_pipe.world.data.lexicon import COLORS, COUNTS, KINDS
from lever_pipe.world.data.scenes import render

SceneIndex = tuple[int, int, int]
"""Indices of kind, colour and count."""


@dataclass(frozen=True)
class ImageBank:
    """Rendered images: pixels uint8 [N, 56, 56, 3], scene indices [N, 3], and where each scene lies."""

    pixels: np.ndarray
    scenes: np.ndarray
    ranges: dict[SceneIndex, range]

    def draw(self, scene: SceneIndex, rng: np.random.Generator) -> int:
        """Return the index of a random image of one scene."""
        span = self.ranges[scene]
        return span.start + int(rng.integers(len(span)))


def draw_bank(n_single: int, seed: int, name: str) -> ImageBank:
    """Return `n_single` images of each one-shape scene and a third of that for two and three."""
    rng = generator(seed, "bank", name)
    pixels: list[np.ndarray] = []
    scenes: list[SceneIndex] = []
    ranges: dict[SceneIndex, range] = {}
    for scene in product(range(len(KINDS)), range(len(COLORS)), range(len(COUNTS))):
        kind, color, count = scene
        n_images = n_single if count == 0 else max(4, n_single // 3)
        ranges[scene] = range(len(pixels), len(pixels) + n_images)
        for _ in range(n_images):
            image = render(KINDS[kind], COLORS[color], COUNTS[count], rng)
            pixels.append(np.asarray(image))
            scenes.append(scene)
    return ImageBank(np.stack(pixels), np.array(scenes), ranges)
