"""The identity of each stage of study `intention`, as `stage_configs` for study `lever`."""

from __future__ import annotations

from typing import Literal

from lever_pipe.base.sections import Section
from lever_pipe.experiment.agent_config import (
    AgentArm,
    AgentEvaluation,
    AgentGrpo,
    AgentModel,
    Environment,
    RunSeed,
    Simulator,
    SyntheticTasks,
    WarmStart,
)


class PrepareTasksConfig(Section):
    """Identity of `prepare_tasks`."""

    source: str
    synthetic: SyntheticTasks | None
    """None where files are read."""


class PolicyConfig(Section):
    """What the policy computes: its model folder by content, precision and dialogue format."""

    model: AgentModel
    """With an empty folder; the content of one stands in `model_identity`."""
    model_identity: str
    """`embedded` for the tiny model."""


class WarmStartAgentConfig(Section):
    """Identity of `warm_start_agent`."""

    policy: PolicyConfig
    warm_start: WarmStart
    environment: Environment


class TrainAgentConfig(Section):
    """Identity of `train_agent`: one arm with one seed."""

    arm: AgentArm
    """With this one seed, and with `trajectory_score` and `learning_rate` filled in."""
    grpo: AgentGrpo
    policy: PolicyConfig
    environment: Environment
    simulator: Simulator
    evaluation: AgentEvaluation

    @property
    def seed(self) -> RunSeed:
        """Return the run's only seed."""
        return self.arm.seeds[0]


class EvaluateAgentConfig(Section):
    """Identity of `evaluate_agent`: a finished run on held-out tasks."""

    arm: str
    seed: RunSeed
    temperature: float
    policy: PolicyConfig
    environment: Environment
    simulator: Simulator
    evaluation: AgentEvaluation


class AgentRun(Section):
    """Which run a set of files belongs to."""

    arm: str
    seed: RunSeed


class CollectAgentsConfig(Section):
    """Identity of `collect_agents`."""

    runs: tuple[AgentRun, ...]
    """One for each of the files of every kind."""


class CompareArmsConfig(Section):
    """Identity of `compare_arms`."""

    arms: tuple[AgentArm, ...]
    reference_arm: str
    document_arm: str
    evaluation: AgentEvaluation
    n_resamples: int = 10_000


class TabulateAgentsConfig(Section):
    """Identity of `tabulate_agents` and of `plot_agents`."""

    arms: tuple[AgentArm, ...]
    reference_arm: str
    document_arm: str
    grpo: AgentGrpo
    environment: Environment
    evaluation: AgentEvaluation
    engine: Literal["native", "verl"]
    is_world: bool
    """Whether tasks and model are the embedded ones."""
    scale: str
    """Which model on which tasks, as the captions print it."""
    max_context: int | None = None
    """Tokens that an episode may have; None where that is not known."""


class PlotAgentsConfig(TabulateAgentsConfig):
    """Identity of `plot_agents`."""


class RenderVerlConfig(Section):
    """Identity of `render_verl`: the launch files of one arm and seed for the original trainer."""

    arm: AgentArm
    """As in `TrainAgentConfig`."""
    grpo: AgentGrpo
    model: AgentModel
    environment: Environment
    simulator: Simulator
    evaluation: AgentEvaluation
    n_gpus: int
    version: str


class ConvertVerlConfig(Section):
    """Identity of `convert_verl`: one recorded log to one run directory."""

    arm: str
    seed: RunSeed
    planned_steps: int
    n_gpus: int
    n_tasks: int
    """Of a validation."""
    version: str
