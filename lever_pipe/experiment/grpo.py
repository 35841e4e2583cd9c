"""Offline GRPO."""

from __future__ import annotations

from pydantic import Field

from lever_pipe.base.sections import KlBeta, Problem, Section, at_most, rule
from lever_pipe.experiment.reward import Reward
from lever_pipe.experiment.selector import TrainingFromBaseConfig


class AdaptiveKl(Section):
    """KL_BETA follows the penalty after every batch (source: Lever-Plus, published code)."""

    low: float = Field(0.01, ge=0)
    """Penalty in nats below which beta is divided by `factor`."""
    high: float = Field(0.1, gt=0)
    """Penalty in nats above which beta is multiplied by `factor`."""
    factor: float = Field(1.5, gt=1)
    minimum: float = Field(0.001, ge=0)
    maximum: float = Field(10.0, gt=0)

    @rule
    def _window_is_in_order(self) -> list[Problem]:
        return at_most(("low",), self.low, "high", self.high, "Exchange or change them.")


class Grpo(Section):
    """Offline GRPO on stored trajectories from a named RCE epoch."""

    learning_rate: float = Field(5e-6, gt=0, le=1)
    batch_queries: int = Field(1, ge=1)
    weight_decay: float = Field(0.01, ge=0, le=1)
    clip_epsilon: float = Field(0.2, gt=0, lt=1)
    top_k_first_epoch: int = Field(3, ge=2)
    top_k: int = Field(5, ge=2)
    """Number of selected trajectories, by reward: `top_k_first_epoch` in the first epoch, `top_k` later."""
    replays: bool = Field(False, exclude_if=lambda does: not does)
    """Learn from the draws of on-policy GRPO with KL_BETA 0, in the same epoch of the same seed, instead of stored
    trajectories. The arm must have that run, and it must draw selections of one length."""
    reward: Reward | None = None
    """Reward of the stored trajectories; null uses the preset's reward, as RCE does. Replayed draws keep the reward
    that they were scored with."""
    freeze_projections: bool = True
    """Train attention and layer norm only (50.1 % of the parameters at D = 512)."""
    z_clamp: float = Field(3.0, gt=0, le=100)
    """Bound on the standardised rewards of a group."""
    advantage_std_floor: float = Field(0.1, gt=0, le=10)
    """Lower bound on the spread of the selected rewards, the divisor of advantages."""
    advantage_clamp: float = Field(5.0, gt=0, le=100)
    """Bound on an advantage."""
    adaptive_kl: AdaptiveKl | None = None
    """null keeps KL_BETA fixed; `{}` adapts it with the published window."""


class TrainGrpoEpochConfig(TrainingFromBaseConfig):
    grpo: Grpo
    kl_beta: KlBeta
