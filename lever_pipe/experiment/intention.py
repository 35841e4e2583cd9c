"""The whole configuration of study `intention`, and the files of its original trainer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from lever_pipe.base.sections import FilePath, Problem, Section, at_most, one_of, repeated, rule
from lever_pipe.experiment.agent_evaluation import AgentEvaluation, AgentRun
from lever_pipe.experiment.agent_model import TINY, WORDS, AgentModel
from lever_pipe.experiment.agent_tasks import WRITTEN_TASKS, Tasks
from lever_pipe.experiment.agent_training import ARMS, START_ARM, AgentArm, AgentGrpo, _document_arm
from lever_pipe.experiment.environment import AgentExecution, Environment, Simulator
from lever_pipe.experiment.served_agents import ServedAgent
from lever_pipe.experiment.sweeps import Sweep, swept
from lever_pipe.experiment.warm_start import WarmStart


class Verl(Section):
    """Settings of `engine: verl`: the original trainer's layout and its logs."""

    n_gpus: int = Field(3, ge=1, le=1024)
    """As published."""
    n_val: int = Field(40, ge=1)
    """Tasks of the validation file, as published; the logs do not record it."""
    logs: FilePath = "logs/verl"
    """Folder of finished runs' logs, `ARM/seed-SEED/` each."""
    version: str = "UserRL cf55a30 (verl 0.4.0.dev)"
    """The version that defines the logs' metrics; recorded with every converted number."""


class Intention(Section):
    """The whole configuration of study `intention`."""

    tasks: Tasks = Tasks()
    simulator: Simulator = Simulator()
    environment: Environment = Environment()
    model: AgentModel = AgentModel()
    warm_start: WarmStart = WarmStart()
    """Warm start of the tiny model, or of a model folder where `folder_micro_batch` is set."""
    grpo: AgentGrpo = AgentGrpo()
    evaluation: AgentEvaluation = AgentEvaluation()
    arms: tuple[AgentArm, ...] = Field(ARMS, min_length=1)
    sweeps: tuple[Sweep, ...] = ()
    """Further arms, in separate tables."""
    reference_arm: str = "baseline"
    """The arm that all others are compared with."""
    document_arm: str = Field(
        default_factory=lambda data: _document_arm(data["arms"], data["reference_arm"]),
        json_schema_extra={"default": "bundle"},  # a factory has no default in the schema; this is the usual one
    )
    """The arm to compare with the documents' KL run; by default `bundle`, else the first arm with KL, else the first
    arm that is not the reference."""
    served: tuple[ServedAgent, ...] = ()
    """Served agents that also play the held-out tasks."""
    engine: Literal["native", "verl"] = "native"
    verl: Verl = Verl()
    execution: AgentExecution = AgentExecution()

    @property
    def is_world(self) -> bool:
        """Return whether tasks and model are the embedded ones, including a tiny agent of another run."""
        # A model folder with the word codec contains a tiny agent that another run trained.
        return self.tasks.source == "synthetic" and (not self.model.folder or self.model.codec == WORDS)

    @property
    def is_taught(self) -> bool:
        """Return whether every arm starts from the warm start's output, not from the model folder itself."""
        return not self.model.folder or self.warm_start.folder_micro_batch is not None

    @property
    def model_name(self) -> str:
        """Return the agent's name; for an agent of another run, its path there, as `arm~baseline/seed~0/best`."""
        folder = self.model.folder
        location = folder.rpartition("/intention/")[2].strip("/") if "/intention/" in folder else Path(folder).name
        return f"{TINY} of {location}" if folder and self.model.codec == WORDS else location or TINY

    @property
    def scale(self) -> str:
        """Return the model and its tasks, as captions print them."""
        if self.is_world:
            return f"embedded world, {self.model_name}"
        tasks = "embedded tasks" if self.tasks.source == "synthetic" else "IntentionGym"
        return f"{self.model_name} on {tasks}"

    @property
    def written_arms(self) -> tuple[AgentArm, ...]:
        """Return the arms without those of sweeps."""
        cells = swept(self.sweeps)
        return tuple(arm for arm in self.arms if arm.name not in cells)

    def filled(self, arm: AgentArm) -> AgentArm:
        """Return an arm with its omitted values filled in from `grpo`."""
        keys = ("trajectory_score", "learning_rate")
        return arm.model_copy(update={key: getattr(arm, key) or getattr(self.grpo, key) for key in keys})

    @rule
    def _the_rule_user_knows_the_tasks(self) -> Iterator[Problem]:
        kind, source = self.simulator.kind, self.tasks.source
        if kind == "rule" and source == WRITTEN_TASKS:
            problem = f"must not be 'rule' with tasks.source={source!r}: that user plays the embedded tasks only."
            yield ("simulator", "kind"), f"{problem} Name openai, or set tasks.source to synthetic."

    @rule
    def _a_folder_that_is_warmed_up_has_demonstrations(self) -> Iterator[Problem]:
        if self.warm_start.folder_micro_batch is None:
            return
        location = ("warm_start", "folder_micro_batch")
        if (source := self.tasks.source) == WRITTEN_TASKS:
            problem = f"must be null with tasks.source={source!r}, whose tasks have no demonstrations."
            yield location, f"{problem} Drop it, or set tasks.source to synthetic."
        if self.engine == "verl":
            yield location, "must be null with engine='verl', which starts from the folder itself. Drop it."

    @rule
    def _arms_differ(self) -> Iterator[Problem]:
        names = [arm.name for arm in self.arms]
        yield from repeated(("arms",), "name", names)
        if START_ARM in names:
            location, problem = (
                ("arms", names.index(START_ARM), "name"),
                "the name of the start policy's rows. Rename it.",
            )
            yield location, f"must not be {START_ARM!r}, {problem}"
        for key in ("reference_arm", "document_arm"):
            yield from one_of((key,), getattr(self, key), names, "Name one of them or add the arm.")

    @rule
    def _served_agents_stand_next_to_the_arms(self) -> Iterator[Problem]:
        names, agents = (START_ARM, *(arm.name for arm in self.arms)), [agent.name for agent in self.served]
        yield from repeated(("served",), "name", agents)
        for index, name in enumerate(agents):
            if name in names:
                yield ("served", index, "name"), f"must differ from 'start' and the arms, got {name!r}. Rename it."
        for name in self.execution.served:
            yield from one_of(("execution", "served", name), name, agents, "Name a served agent, or drop the key.")
        if self.engine == "verl":
            problem = "must be empty with engine: verl, which evaluates no held-out tasks. Drop them."
            for key, given in (
                (("served",), self.served),
                (("evaluation", "temperatures"), self.evaluation.temperatures),
            ):
                if given:
                    yield key, problem

    @rule
    def _steps_find_prompts(self) -> list[Problem]:
        if self.tasks.source != "synthetic":
            return []
        bound, most = "intention.tasks.synthetic.n_train", self.tasks.synthetic.n_train
        return at_most(("grpo", "prompts"), self.grpo.prompts, bound, most, "Lower it or raise n_train.")


class RenderVerlConfig(Section):
    arm: AgentArm
    grpo: AgentGrpo
    model: AgentModel
    environment: Environment
    simulator: Simulator
    evaluation: AgentEvaluation
    n_gpus: int
    version: str


class ConvertVerlConfig(AgentRun):
    planned_steps: int
    n_gpus: int
    n_tasks: int
    """Tasks of a validation."""
    version: str
