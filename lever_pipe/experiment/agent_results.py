"""Results of all arms."""

from __future__ import annotations

from operator import not_
from typing import Annotated, Literal

from pydantic import Field

from lever_pipe.base.sections import ArmName, Section
from lever_pipe.experiment.agent_evaluation import AgentEvaluation, AgentRun
from lever_pipe.experiment.agent_training import AgentArm, Arms
from lever_pipe.experiment.identities import Planned, Setting, identity_of
from lever_pipe.experiment.sweeps import Sweep


@identity_of("collect_agents")
class CollectAgentsConfig(Section):
    runs: Annotated[tuple[AgentRun, ...], Planned("agent_runs")]
    """One for each file of every kind, in the same order."""
    served: Annotated[tuple[ArmName, ...], Planned("served_names")] = Field((), exclude_if=lambda names: not names)
    """Served agents, one for each of the `served_evaluations`; absent if there are none."""


@identity_of("collect_dialogues", section="intention")
class CollectDialoguesConfig(Section):
    runs: Annotated[tuple[AgentRun, ...], Planned("agent_runs")]
    """One for each of the files, in the same order."""
    arms: Arms
    reference_arm: str
    checkpoint: Annotated[Literal["last", "best"], Setting("intention.evaluation.primary.checkpoint")]


class ComparedArms(Section):
    """Values of stages that show all arms side by side."""

    arms: Arms
    reference_arm: str
    document_arm: str
    evaluation: AgentEvaluation
    sweeps: tuple[Sweep, ...] = Field((), exclude_if=not_)


@identity_of("compare_arms", section="intention")
class CompareArmsConfig(ComparedArms):
    swept: Annotated[tuple[AgentArm, ...], Planned("swept_arms")] = Field((), exclude_if=not_)
    """The arms of sweeps."""
    n_resamples: int = 10_000
