"""Common parts of the training of both models: images by scene, the optimizer and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn

from lever_pipe.base.seeding import generator
from lever_pipe.world.lexicon import COLORS, COUNTS, KINDS
from lever_pipe.world.scenes import render

SceneIndex = tuple[int, int, int]
"""Indices of kind, color and count."""


@dataclass(frozen=True)
class ImageBank:
    """Rendered images: pixels uint8 [N, 56, 56, 3], scene indices [N, 3], and the range of each scene's images."""

    pixels: np.ndarray
    scenes: np.ndarray
    ranges: dict[SceneIndex, range]

    def draw(self, scene: SceneIndex, rng: np.random.Generator) -> int:
        """Return the index of a random image of one scene."""
        span = self.ranges[scene]
        return span.start + int(rng.integers(len(span)))


def draw_bank(n_single: int, seed: int, name: str) -> ImageBank:
    """Return `n_single` images of each scene with one shape, and a third of them (at least 4) for two and three."""
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


def make_optimizer(parameters: Iterable[nn.Parameter], *, decay: float = 0.05) -> torch.optim.AdamW:
    """Return an AdamW optimizer with weight decay only for matrices."""
    trained = list(parameters)
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.98), fused=True)


def set_rate(
    optimizer: torch.optim.Optimizer,
    step: int,
    n_steps: int,
    peak: float,
    final: float,
    warmup: int,
) -> None:
    """Set the learning rate of a step: a linear warm-up times a cosine from `peak` to `final`."""
    cosine = final + (peak - final) * 0.5 * (1 + math.cos(math.pi * step / n_steps))
    for group in optimizer.param_groups:
        group["lr"] = min(1.0, (step + 1) / warmup) * cosine


def take_step(optimizer: torch.optim.Optimizer, loss: Tensor, clipped: Iterable[nn.Parameter]) -> None:
    """Take an optimizer step on a loss, with the joint gradient norm of `clipped` limited to 1."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(clipped, 1.0)
    optimizer.step()
