"""Reward-weighted cross-entropy (RCE)."""

from __future__ import annotations

from pydantic import Field

from lever_pipe.base.sections import Section, Share
from lever_pipe.experiment.reward import Reward
from lever_pipe.experiment.selector import TrainingConfig, TrainingFromBaseConfig


class Rce(Section):
    """Reward-weighted cross-entropy; one epoch is `passes` over the train queries."""

    learning_rate: float = Field(1e-4, gt=0, le=1)
    batch_queries: int = Field(1, ge=1)
    passes: int = Field(1, ge=1, le=64)
    temperature_start: float = Field(2.0, gt=0, le=100)
    temperature_end: float = Field(0.5, gt=0, le=100)
    horizon_epochs: int = Field(5, ge=1)
    """Epochs of the schedules; independent of the number of epochs, so that extending a run keeps earlier epochs."""
    final_learning_rate_share: Share = 1.0
    """Learning rate at the horizon as a share of the first, on a cosine; 1 keeps it constant."""
    weight_decay: float = Field(0.01, ge=0, le=1)
    weight_by_spread: bool = False
    """Whether to weight a query by its reward range, so that uniform groups are not imitated."""


class TrainRceEpochConfig(TrainingConfig):
    rce: Rce
    rce_from_sft_epoch: int = 0
    """The SFT epoch that the first RCE epoch starts from; 0 for the untrained selector."""


class ContinuedRce(Rce):
    """Continued RCE, for comparison with GRPO: RCE's temperature; GRPO's data, batch and learning rate."""

    reward: Reward | None
    freeze_projections: bool


class TrainContinuedEpochConfig(TrainingFromBaseConfig):
    continued: ContinuedRce
