"""From the experiment to study `intention`: its runs, and what its jobs' identities take from the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TypeVar

from lever_pipe.base.contents import model_identity
from lever_pipe.base.policy_names import PolicyName
from lever_pipe.base.provenance import canonical_json
from lever_pipe.base.sections import Section
from lever_pipe.experiment.agent_config import (
    OF_GRPO,
    WORDS,
    AgentArm,
    AgentEvaluation,
    AgentGrpo,
    Intention,
    ServedAgent,
    SyntheticTasks,
)
from lever_pipe.experiment.agent_stage_configs import AgentRun, PolicyConfig
from lever_pipe.experiment.config import swept
from lever_pipe.experiment.studies import Experiment

Wildcards = Mapping[str, str]
Settings = TypeVar("Settings", bound=Section)
EMBEDDED = "embedded"
"""Identity of the tiny model, whose weights come from its own rule."""


def runs(intention: Intention) -> list[AgentRun]:
    """Return every run once: each arm with each of its seeds."""
    return [AgentRun(arm=arm.name, seed=seed) for arm in intention.arms for seed in arm.seeds]


def folder_of(run: AgentRun) -> str:
    """Return a run's folder below the study's."""
    return str(PolicyName(kind="agent", variant=run.arm, seed=run.seed))


def raw_files(intention: Intention) -> dict[str, list[str]]:
    """Return the files that `prepare_tasks` reads, by their names there; none for generated tasks."""
    files = intention.tasks.files
    if intention.tasks.source == "synthetic":
        return {"train_file": [], "val_file": [], "test_file": [], "details": []}
    splits = {"train_file": [files.train], "val_file": [files.val], "test_file": [files.test]}
    is_table = any(path.endswith(".parquet") for (path,) in splits.values())
    return {**splits, "details": list(files.details) if is_table else []}


def codec_files(intention: Intention) -> tuple[str, ...]:
    """Return what a policy that the warm start has taught holds beside weights and settings."""
    of_folder = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
    return of_folder if intention.model.folder and intention.model.codec != WORDS else ("words.json",)


def execution_of(intention: Intention) -> str:
    """Return the execution settings as the command line takes them."""
    return canonical_json(intention.execution.model_dump(mode="json"))


def served_agent(experiment: Experiment, wildcards: Wildcards) -> ServedAgent:
    """Return the served agent that a job names."""
    return next(agent for agent in experiment.intention.served if agent.name == wildcards["arm"])


def evaluation_of_served(experiment: Experiment, wildcards: Wildcards) -> AgentEvaluation:
    """Return how a served agent is evaluated; what only samples are drawn by moves no greedy episode."""
    sampled = () if "sampled" in served_agent(experiment, wildcards).modes else ("test_samples", "seed")
    unread = ("every", "samples", "batch", "temperatures", "primary", *sampled)
    return at_defaults(experiment.intention.evaluation, *unread)


def temperature_of_served(experiment: Experiment, wildcards: Wildcards) -> float:
    """Return the temperature of a served agent's samples, that of the arms; greedy episodes have none."""
    is_sampled = "sampled" in served_agent(experiment, wildcards).modes
    return (experiment.intention.grpo if is_sampled else AgentGrpo()).temperature


@cache
def identity_of_model(folder: str) -> str:
    """Return the content of a model folder, read once for all jobs; that of the tiny agent where it is none."""
    return model_identity(folder) if folder else EMBEDDED


def generator(intention: Intention) -> SyntheticTasks | None:
    """Return the settings of generated tasks, which tasks that are read do not depend on."""
    return intention.tasks.synthetic if intention.tasks.source == "synthetic" else None


def policy(intention: Intention) -> PolicyConfig:
    """Return what the policy computes."""
    model = intention.model
    return PolicyConfig(model=model.model_copy(update={"folder": ""}), model_identity=identity_of_model(model.folder))


def arms(intention: Intention) -> tuple[AgentArm, ...]:
    """Return the written arms with the settings that they leave to `grpo` filled in."""
    return tuple(map(intention.filled, intention.written_arms))


def swept_arms(intention: Intention) -> tuple[AgentArm, ...]:
    """Return the arms of sweeps."""
    cells = swept(intention.sweeps)
    return tuple(arm for arm in intention.arms if arm.name in cells)


def arm_of(experiment: Experiment, wildcards: Wildcards) -> AgentArm:
    """Return a run's arm with its one seed, and with the settings that it leaves to `grpo` filled in."""
    arm = next(arm for arm in experiment.intention.arms if arm.name == wildcards["arm"])
    return experiment.intention.filled(arm).model_copy(update={"seeds": (int(wildcards["seed"]),)})


def grpo_of_arm(experiment: Experiment, wildcards: Wildcards) -> AgentGrpo:
    """Return the settings of GRPO with what a run's arm sets itself."""
    arm, grpo = arm_of(experiment, wildcards), experiment.intention.grpo
    bounds = {key: getattr(arm, key) or getattr(grpo, key) for key in OF_GRPO}
    return grpo.model_copy(update=arm.model_dump(include={"trajectory_score", "learning_rate"}) | bounds)


def at_defaults(settings: Settings, *unread: str) -> Settings:
    """Return settings with those at their defaults that a stage does not read, so that no edit of them reruns it."""
    plain = type(settings)()
    return settings.model_copy(update={name: getattr(plain, name) for name in unread})
