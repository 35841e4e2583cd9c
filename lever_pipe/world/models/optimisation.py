"""The optimiser and learning rate schedule that both models share."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn


def make_optimizer(parameters: Iterable[nn.Parameter], *, decay: float = 0.05) -> torch.optim.AdamW:
    """Return AdamW that decays matrices only."""
    chosen = list(parameters)
    groups = [
        {"params": [p for p in chosen if p.ndim >= 2], "weight_decay": decay},
        {"params": [p for p in chosen if p.ndim < 2], "weight_decay": 0.0},
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
    """Set the learning rate of a step: linear warm-up times a cosine from `peak` to `final`."""
    cosine = final + (peak - final) * 0.5 * (1 + math.cos(math.pi * step / n_steps))
    for group in optimizer.param_groups:
        group["lr"] = min(1.0, (step + 1) / warmup) * cosine
