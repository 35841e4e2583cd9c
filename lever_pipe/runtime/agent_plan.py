"""Derive study `intention` from the experiment: its runs, and the settings in its jobs' identities."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TypeVar

from lever_pipe.base.contents import model_identity
from lever_pipe.base.policy_names import PolicyName
from lever_pipe.base.provenance import canonical_json
from lever_pipe.base.sections import Section
from lever_pipe.experiment.agent_evaluation import AgentEvaluation, AgentRun
from lever_pipe.experiment.agent_model import WORDS, PolicyConfig
from lever_pipe.experiment.agent_tasks import SyntheticTasks
from lever_pipe.experiment.agent_training import OF_GRPO, AgentArm, AgentGrpo
from lever_pipe.experiment.intention import Intention
from lever_pipe.experiment.served_agents import ServedAgent
from lever_pipe.experiment.studies import Experiment
from lever_pipe.experiment.sweeps import swept

Wildcards = Mapping[str, str]
Settings = TypeVar("Settings", bound=Section)
EMBEDDED = "embedded"
"""Identity of the tiny model, whose weights come from its own rule."""


def runs(intention: Intention) -> list[AgentRun]:
    """Return all runs: each arm with each of its seeds."""
    return [AgentRun(arm=arm.name, seed=seed) for arm in intention.arms for seed in arm.seeds]


def folder_of(run: AgentRun) -> str:
    """Return a run's folder, relative to the study's."""
    return str(PolicyName(kind="agent", variant=run.arm, seed=run.seed))


def raw_files(intention: Intention) -> dict[str, list[str]]:
    """Return the input files of `prepare_tasks` by input name; none for generated tasks."""
    files = intention.tasks.files
    if intention.tasks.source == "synthetic":
        return {"train_file": [], "val_file": [], "test_file": [], "details": []}
    splits = {"train_file": [files.train], "val_file": [files.val], "test_file": [files.test]}
    # The details are only needed for tables in parquet files.
    is_table = any(path.endswith(".parquet") for (path,) in splits.values())
    return {**splits, "details": list(files.details) if is_table else []}


def codec_files(intention: Intention) -> tuple[str, ...]:
    """Return the tokenizer files of a policy's folder after the warm start."""
    of_folder = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
    return of_folder if intention.model.folder and intention.model.codec != WORDS else ("words.json",)


def execution_of(intention: Intention) -> str:
    """Return the execution settings for the command line, as JSON."""
    return canonical_json(intention.execution.model_dump(mode="json"))


def served_agent(experiment: Experiment, wildcards: Wildcards) -> ServedAgent:
    """Return a job's served agent."""
    return next(agent for agent in experiment.intention.served if agent.name == wildcards["arm"])


def evaluation_of_served(experiment: Experiment, wildcards: Wildcards) -> AgentEvaluation:
    """Return the evaluation settings of a served agent, with unread ones at their defaults.

    Settings of samples are unread if the agent has only greedy episodes.
    """
    of_samples = () if "sampled" in served_agent(experiment, wildcards).modes else ("test_samples", "seed")
    unread = ("every", "samples", "batch", "temperatures", "primary", *of_samples)
    return at_defaults(experiment.intention.evaluation, *unread)


def temperature_of_served(experiment: Experiment, wildcards: Wildcards) -> float:
    """Return the sampling temperature of a served agent: that of the arms, or the default if it is always greedy."""
    is_sampled = "sampled" in served_agent(experiment, wildcards).modes
    return (experiment.intention.grpo if is_sampled else AgentGrpo()).temperature


@cache
def identity_of_model(folder: str) -> str:
    """Return the identity of a model folder, read once for all jobs; `EMBEDDED` without a folder."""
    return model_identity(folder) if folder else EMBEDDED


def generator(intention: Intention) -> SyntheticTasks | None:
    """Return the settings of generated tasks; None if tasks are read from files."""
    return intention.tasks.synthetic if intention.tasks.source == "synthetic" else None


def policy(intention: Intention) -> PolicyConfig:
    """Return the policy's config; the folder's path is replaced by the identity of its content."""
    model = intention.model
    return PolicyConfig(model=model.model_copy(update={"folder": ""}), model_identity=identity_of_model(model.folder))


def arms(intention: Intention) -> tuple[AgentArm, ...]:
    """Return the written arms, with unset values filled in from `grpo`."""
    return tuple(map(intention.filled, intention.written_arms))


def swept_arms(intention: Intention) -> tuple[AgentArm, ...]:
    """Return the arms of sweeps."""
    cells = swept(intention.sweeps)
    return tuple(arm for arm in intention.arms if arm.name in cells)


def arm_of(experiment: Experiment, wildcards: Wildcards) -> AgentArm:
    """Return a run's arm with only its seed, and with unset values filled in from `grpo`."""
    arm = next(arm for arm in experiment.intention.arms if arm.name == wildcards["arm"])
    return experiment.intention.filled(arm).model_copy(update={"seeds": (int(wildcards["seed"]),)})


def grpo_of_arm(experiment: Experiment, wildcards: Wildcards) -> AgentGrpo:
    """Return the settings of GRPO, overridden by those of a run's arm."""
    arm, grpo = arm_of(experiment, wildcards), experiment.intention.grpo
    bounds = {key: getattr(arm, key) or getattr(grpo, key) for key in OF_GRPO}
    return grpo.model_copy(update=arm.model_dump(include={"trajectory_score", "learning_rate"}) | bounds)


def at_defaults(settings: Settings, *unread: str) -> Settings:
    """Set the settings that a stage does not read to their defaults, so that editing them does not rerun the stage."""
    plain = type(settings)()
    return settings.model_copy(update={name: getattr(plain, name) for name in unread})
