"""Rewards of a trajectory."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field

from lever_pipe.base.plugins import plugin_of
from lever_pipe.base.sections import Counts, Section

RewardModeName = Literal[
    "hard_plus_soft",
    "hard_plus_soft_v2",
    "hard_only",
    "soft_only",
    "separated",
    "hard01_plus_gtprob",
    "hard01_plus_gtprob_separated",
    "hard_plus_gtprob_plus_rel",
    "expected_only",
    "accuracy_plus_expected",
    "legacy",
    "hybrid",
]


class Reward(Section):
    """The function from a trajectory's stored scores to one reward (`lever_pipe/lever/rewards.py`)."""

    mode: Annotated[str, plugin_of("lever/rewards", *get_args(RewardModeName))] = Field(
        "hard_plus_soft", examples=list(get_args(RewardModeName))
    )
    """A function of `lever_pipe/lever/rewards.py`, or a module `lever/rewards/NAME.py` outside the package."""
    hard: float = Field(1.0, ge=0, le=100)
    soft: float = Field(1.0, ge=0, le=100)
    relevance: float = Field(0.1, ge=0, le=100)
    alpha: float = Field(0.0, ge=0, le=100)
    """Weight of the proposal's own score, in mode `legacy` only."""
    beta: float = Field(0.0, ge=0, le=100)
    """Weight of correctness, in mode `legacy` only."""
    correctness: Literal["01", "-11"] = "01"
    """Whether a wrong answer counts 0 or -1, in mode `legacy` only."""


class RewardGroupsConfig(Section):
    reward: Reward


class MeasureRewardsConfig(Section):
    rewards: tuple[Reward, ...]
    """Reward functions that the stage applies to the groups."""
    selected: Counts
    """Values of top k in the offline objective."""
    z_clamp: float
    advantage_std_floor: float
    advantage_clamp: float
