"""Rendering of scenes as 56 x 56 images of flat shapes on a dark background."""

from __future__ import annotations

import math

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from lever_pipe.world.lexicon import COUNTS

SIZE = 56  # pixels: 4 x 4 patches of 14, merged to the 4 visual tokens of one image
OVERSAMPLING = 4  # factor of the drawing's size before box averaging, which smooths edges
COLOR_JITTER = 20
BACKGROUND_TINT = 18
BACKGROUND_LEVELS = 120
MAX_TILT = 0.25  # radians

PALETTE = {
    "red": (214, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 80, 210),
    "yellow": (240, 205, 30),
    "purple": (140, 50, 170),
    "white": (245, 245, 245),
}

Points = list[tuple[float, float]]


def _star() -> Points:
    polar = [(1.0 if i % 2 == 0 else 0.42, i * math.pi / 5) for i in range(10)]
    return [(radius * math.sin(angle), -radius * math.cos(angle)) for radius, angle in polar]


def _cross(arm: float = 0.33) -> Points:
    corner: Points = [(-arm, -1), (arm, -1), (arm, -arm)]
    # Each quarter turn maps (x, y) to (-y, x); a quarter has three corners.
    points: Points = []
    for _ in range(4):
        points += corner
        corner = [(-y, x) for x, y in corner]
    return points


def _heart() -> Points:
    angles = [2 * math.pi * i / 40 for i in range(40)]
    return [
        (
            16 * math.sin(t) ** 3 / 17,
            -(13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)) / 17,
        )
        for t in angles
    ]


def _moon() -> Points:
    outer = np.linspace(0.25 * math.pi, 1.75 * math.pi, 24)
    inner = np.linspace(1.7 * math.pi, 0.3 * math.pi, 24)
    return [(math.cos(t), math.sin(t)) for t in outer] + [
        (0.38 + 0.72 * math.cos(t), 0.72 * math.sin(t)) for t in inner
    ]


# Outlines within the unit circle, y downwards; ball and ring are ellipses.
OUTLINES: dict[str, Points] = {
    "box": [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)],
    "cone": [(0, -1), (0.95, 0.85), (-0.95, 0.85)],
    "star": _star(),
    "cross": _cross(),
    "heart": _heart(),
    "moon": _moon(),
}


def _positions(count: int, rng: np.random.Generator) -> list[tuple[float, float, float]]:
    """Return x, y and radius in pixels: one large shape anywhere, or small shapes in different quadrants."""
    if count == 1:
        radius = rng.uniform(12, 20)
        x, y = rng.uniform(radius + 2, SIZE - radius - 2, size=2)
        return [(x, y, radius)]
    half = SIZE // 2
    spots = []
    for quadrant in rng.permutation(4)[:count]:
        radius = rng.uniform(9.5, 12.5)
        x, y = rng.uniform(radius + 1, half - 1 - radius, size=2)
        spots.append((half * (quadrant % 2) + x, half * (quadrant // 2) + y, radius))
    return spots


def _jittered(rgb: tuple[int, ...], spread: int, rng: np.random.Generator) -> tuple[int, ...]:
    noise = rng.integers(-spread, spread, size=3, endpoint=True)
    return tuple(int(v) for v in np.clip(np.array(rgb) + noise, 0, 255))


def _paint(
    draw: ImageDraw.ImageDraw, kind: str, fill: tuple[int, ...], spot: tuple[float, float, float], tilt: float
) -> None:
    x, y, radius = (value * OVERSAMPLING for value in spot)
    box = (x - radius, y - radius, x + radius, y + radius)
    if kind == "ball":
        draw.ellipse(box, fill=fill)
    elif kind == "ring":
        draw.ellipse(box, outline=fill, width=int(0.4 * radius))
    else:
        cos, sin = radius * math.cos(tilt), radius * math.sin(tilt)
        draw.polygon([(x + u * cos - v * sin, y + u * sin + v * cos) for u, v in OUTLINES[kind]], fill=fill)


def render(
    kind: str,
    color: str,
    count: str,
    rng: np.random.Generator,
    *,
    second: tuple[str, str] | None = None,
    blur: float = 0.0,
) -> Image.Image:
    """Return an RGB image of 56 x 56 pixels, with random position, size, tilt and shades from `rng`.

    `second` is the kind and color of the second shape, if they differ; `blur` is a radius in pixels.
    """
    level = int(rng.integers(BACKGROUND_LEVELS, endpoint=True))
    background = _jittered((level, level, level), BACKGROUND_TINT, rng)
    image = Image.new("RGB", (SIZE * OVERSAMPLING, SIZE * OVERSAMPLING), background)
    draw, fill = ImageDraw.Draw(image), _jittered(PALETTE[color], COLOR_JITTER, rng)
    shapes = [(kind, fill)] * (COUNTS.index(count) + 1)
    if second is not None:
        shapes[1] = (second[0], _jittered(PALETTE[second[1]], COLOR_JITTER, rng))
    for (shape, paint), spot in zip(shapes, _positions(len(shapes), rng), strict=True):
        _paint(draw, shape, paint, spot, rng.uniform(-MAX_TILT, MAX_TILT))
    small = image.resize((SIZE, SIZE), Image.Resampling.BOX)
    return small.filter(ImageFilter.GaussianBlur(blur)) if blur else small
