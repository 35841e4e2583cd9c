"""Identities of the stages of study `intention`; `stage_configs` contains study `lever`'s."""

from __future__ import annotations

from operator import not_
from typing import Annotated, Literal

from pydantic import Field

from lever_pipe.base.sections import Section
from lever_pipe.experiment.agent_config import (
    AgentArm,
    AgentEvaluation,
    AgentGrpo,
    AgentModel,
    ArmName,
    Environment,
    RunSeed,
    ServedAgent,
    Simulator,
    SyntheticTasks,
    WarmStart,
)
from lever_pipe.experiment.config import Sweep
from lever_pipe.experiment.identities import Planned, Setting, Wildcard, identity_of

CODEC = "intention.codecs.{policy.model.codec}"
SIMULATOR = "intention.simulators.{simulator.kind}"


class PolicyConfig(Section):
    """Everything that determines the policy's output: model content, precision and dialogue format."""

    model: AgentModel
    """With an empty folder; `model_identity` contains the folder's content."""
    model_identity: str
    """`embedded` for the tiny model."""


OfPolicy = Annotated[PolicyConfig, Planned("agent_policy")]
OneArm = Annotated[AgentArm, Planned("agent_arm")]
"""An arm with one seed, and with `trajectory_score` and `learning_rate` filled in."""
Arms = Annotated[tuple[AgentArm, ...], Planned("agent_arms")]
"""All arms, with `trajectory_score` and `learning_rate` filled in."""


class AgentRun(Section):
    """The run of a set of files."""

    arm: Annotated[str, Wildcard("arm")]
    seed: Annotated[RunSeed, Wildcard("seed")]


@identity_of("prepare_tasks", "intention.sources.{source}", section="intention.tasks")
class PrepareTasksConfig(Section):
    source: str
    synthetic: Annotated[SyntheticTasks | None, Planned("generator")]
    """None when tasks come from files."""


@identity_of("warm_start_agent", CODEC, section="intention")
class WarmStartAgentConfig(Section):
    policy: OfPolicy
    warm_start: WarmStart
    environment: Environment


@identity_of("train_agent", SIMULATOR, CODEC, section="intention")
class TrainAgentConfig(Section):
    arm: OneArm
    grpo: Annotated[AgentGrpo, Planned("grpo_of_arm")]
    policy: OfPolicy
    environment: Environment
    simulator: Simulator
    evaluation: Annotated[AgentEvaluation, Planned("evaluation_in_training")]

    @property
    def seed(self) -> RunSeed:
        """Return the run's only seed."""
        return self.arm.seeds[0]


@identity_of("evaluate_start", SIMULATOR, CODEC, section="intention")
class EvaluateStartConfig(Section):
    temperature: Annotated[float, Setting("intention.grpo.temperature")]
    policy: OfPolicy
    environment: Environment
    simulator: Simulator
    evaluation: Annotated[AgentEvaluation, Planned("evaluation_of_tests")]


@identity_of("evaluate_agent", SIMULATOR, CODEC, section="intention")
class EvaluateAgentConfig(EvaluateStartConfig, AgentRun):
    """Identity of `evaluate_agent`: a finished run on held-out tasks."""


@identity_of("evaluate_served", SIMULATOR, section="intention")
class EvaluateServedConfig(Section):
    agent: Annotated[ServedAgent, Planned("served_agent")]
    temperature: Annotated[float, Planned("temperature_of_served")]
    environment: Environment
    simulator: Simulator
    evaluation: Annotated[AgentEvaluation, Planned("evaluation_of_served")]


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


@identity_of("render_verl", section="intention")
class RenderVerlConfig(Section):
    arm: OneArm
    grpo: AgentGrpo
    model: AgentModel
    environment: Environment
    simulator: Simulator
    evaluation: AgentEvaluation
    n_gpus: Annotated[int, Setting("intention.verl.n_gpus")]
    version: Annotated[str, Setting("intention.verl.version")]


@identity_of("convert_verl", section="intention.verl")
class ConvertVerlConfig(AgentRun):
    planned_steps: Annotated[int, Setting("intention.grpo.steps")]
    n_gpus: int
    n_tasks: Annotated[int, Setting("intention.verl.n_val")]
    """Tasks of a validation."""
    version: str
