"""Results of all arms."""

from __future__ import annotations

from operator import not_
from typing import Literal

from pydantic import Field

from lever_pipe.base.sections import ArmName, Section
from lever_pipe.experiment.agent_evaluation import AgentEvaluation, AgentRun
from lever_pipe.experiment.agent_training import AgentArm, Arms
from lever_pipe.experiment.sweeps import Sweep


class CollectAgentsConfig(Section):
    runs: tuple[AgentRun, ...]
    """One for each file of every kind, in the same order."""
    served: tuple[ArmName, ...] = Field((), exclude_if=lambda names: not names)
    """Served agents, one for each of the `served_evaluations`; absent if there are none."""


class CollectDialoguesConfig(Section):
    runs: tuple[AgentRun, ...]
    """One for each of the files, in the same order."""
    arms: Arms
    reference_arm: str
    checkpoint: Literal["last", "best"]


class ComparedArms(Section):
    """Values of stages that show all arms side by side."""

    arms: Arms
    reference_arm: str
    document_arm: str
    evaluation: AgentEvaluation
    sweeps: tuple[Sweep, ...] = Field((), exclude_if=not_)


class CompareArmsConfig(ComparedArms):
    swept: tuple[AgentArm, ...] = Field((), exclude_if=not_)
    """The arms of sweeps."""
    n_resamples: int = 10_000
