"""Supervised learning of beam data."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lever_pipe.base.sections import Section, Share
from lever_pipe.experiment.selector import TrainingConfig


class Sft(Section):
    """Supervised learning of beam data; one epoch is `passes` over the training anchors."""

    learning_rate: float = Field(1e-4, gt=0, le=1)
    batch_queries: int = Field(64, ge=1)
    passes: int = Field(1, ge=1, le=64)
    horizon_epochs: int = Field(20, ge=1)
    """Epochs over which the learning rate rises and falls; independent of the number of epochs, so that extending a run
    keeps earlier epochs."""
    warmup_share: Share = 0.05
    """Share of the horizon's steps with a rising learning rate."""
    final_learning_rate_share: Share = 0.0
    """Learning rate at the horizon as a share of the highest, on a cosine; 1 keeps it constant."""
    weight_decay: float = Field(1e-3, ge=0, le=1)
    targets: Literal["best", "beams"] = "best"
    """Targets: a query's best beam, or all of its beams, weighted by softmax(probability / temperature)."""
    temperature: float = Field(0.1, gt=0, le=100)
    """Temperature of these weights; `beams` only."""


class TrainSftEpochConfig(TrainingConfig):
    sft: Sft
