"""From the experiment to study `intention`: its runs, and the identity of each of its jobs."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from lever_pipe.base.contents import model_identity
from lever_pipe.base.provenance import canonical_json
from lever_pipe.base.sections import Section
from lever_pipe.experiment import agent_stage_configs as stages
from lever_pipe.experiment.agent_config import AgentArm, AgentEvaluation, AgentModel, Intention
from lever_pipe.experiment.stage_configs import ClaimArm

Wildcards = dict[str, str]
EMBEDDED = "embedded"
"""Identity of the tiny model, whose weights come from its own rule."""


def runs(intention: Intention) -> list[stages.AgentRun]:
    """Return every run once: each arm with each of its seeds."""
    return [stages.AgentRun(arm=arm.name, seed=seed) for arm in intention.arms for seed in arm.seeds]


def folder_of(run: stages.AgentRun) -> str:
    """Return a run's folder below the study's."""
    return f"arm~{run.arm}/seed~{run.seed}"


def is_world(intention: Intention) -> bool:
    """Return whether tasks and model are the embedded ones."""
    return intention.tasks.source == "synthetic" and not intention.model.folder


def scale(intention: Intention) -> str:
    """Return which model runs on which tasks, as captions print it."""
    if is_world(intention):
        return f"embedded world, {model_name(intention)}"
    tasks = "embedded tasks" if intention.tasks.source == "synthetic" else "IntentionGym"
    return f"{model_name(intention)} on {tasks}"


def model_name(intention: Intention) -> str:
    """Return the agent's name."""
    return Path(intention.model.folder).name or "tiny Qwen3"


def raw_files(intention: Intention) -> dict[str, list[str]]:
    """Return the files that `prepare_tasks` reads, by their names there; none for generated tasks."""
    files = intention.tasks.files
    if intention.tasks.source == "synthetic":
        return {"train_file": [], "val_file": [], "test_file": [], "details": []}
    details = list(files.details) if intention.tasks.source == "parquet" else []
    return {"train_file": [files.train], "val_file": [files.val], "test_file": [files.test], "details": details}


def execution_of(intention: Intention) -> str:
    """Return the execution settings as the command line takes them."""
    return canonical_json(intention.execution.model_dump(mode="json"))


def members_of(config: Section) -> tuple[str, ...]:
    """Return the modules that a stage's config selects by name, as `intention.sources.synthetic`."""
    match config:
        case stages.PrepareTasksConfig():
            return (f"intention.sources.{config.source}",)
        case stages.WarmStartAgentConfig():
            return (f"intention.codecs.{config.policy.model.codec}",)
        case stages.TrainAgentConfig() | stages.EvaluateAgentConfig():
            codec = config.policy.model.codec
            return (f"intention.simulators.{config.simulator.kind}", f"intention.codecs.{codec}")
        case _:
            return ()


def stage_config(intention: Intention, stage: str, wildcards: Wildcards) -> Section | None:
    """Return the identity of one job of this study, or None for a stage of another study."""
    builder = globals().get(f"_{stage}")
    if builder is None:
        return None
    config: Section = builder(intention, wildcards)
    return config


def claim_settings(intention: Intention) -> dict[str, Any]:
    """Return what `check_claims` has to know about the arms."""
    return {
        "arms": tuple(_claim_arm(arm) for arm in _complete_arms(intention)),
        "reference_arm": intention.reference_arm,
        "document_arm": intention.document_arm,
        "mode": intention.evaluation.primary.mode,
        "scale": scale(intention),
    }


def _claim_arm(arm: AgentArm) -> ClaimArm:
    values = arm.model_dump(include={"name", "kl", "entropy", "learning_rate", "trajectory_score"})
    return ClaimArm(**values, schedule=arm.schedule.kind, warmup_steps=arm.schedule.warmup_steps)


@cache
def _identity(folder: str) -> str:
    """Return the content of a model folder, read once for all jobs."""
    return model_identity(folder) if folder else EMBEDDED


def _policy(intention: Intention) -> stages.PolicyConfig:
    values = intention.model.model_dump() | {"folder": ""}
    identity = _identity(intention.model.folder)
    return stages.PolicyConfig(model=AgentModel(**values), model_identity=identity)


def _arm(intention: Intention, wildcards: Wildcards) -> AgentArm:
    """Return the arm with this one seed, and with the settings that it leaves to `grpo` filled in."""
    arm = next(arm for arm in intention.arms if arm.name == wildcards["arm"])
    left = {key: getattr(arm, key) or getattr(intention.grpo, key) for key in ("trajectory_score", "learning_rate")}
    return arm.model_copy(update={**left, "seeds": (int(wildcards["seed"]),)})


def _evaluation(intention: Intention, *, unread: tuple[str, ...]) -> AgentEvaluation:
    """Return the settings of evaluations with those at their defaults that a stage does not read."""
    plain = AgentEvaluation()
    return intention.evaluation.model_copy(update={name: getattr(plain, name) for name in unread})


def _complete_arms(intention: Intention) -> tuple[AgentArm, ...]:
    found = [(arm, _arm(intention, {"arm": arm.name, "seed": str(arm.seeds[0])})) for arm in intention.arms]
    return tuple(complete.model_copy(update={"seeds": arm.seeds}) for arm, complete in found)


def _prepare_tasks(intention: Intention, _: Wildcards) -> Section:
    tasks = intention.tasks
    synthetic = tasks.synthetic if tasks.source == "synthetic" else None
    return stages.PrepareTasksConfig(source=tasks.source, synthetic=synthetic)


def _warm_start_agent(intention: Intention, _: Wildcards) -> Section:
    return stages.WarmStartAgentConfig(
        policy=_policy(intention), warm_start=intention.warm_start, environment=intention.environment
    )


def _train_agent(intention: Intention, wildcards: Wildcards) -> Section:
    arm = _arm(intention, wildcards)
    of_arm = {"trajectory_score": arm.trajectory_score, "learning_rate": arm.learning_rate}
    return stages.TrainAgentConfig(
        arm=arm,
        grpo=intention.grpo.model_copy(update=of_arm),
        policy=_policy(intention),
        environment=intention.environment,
        simulator=intention.simulator,
        evaluation=_evaluation(intention, unread=("test_samples", "thresholds", "primary")),
    )


def _evaluate_agent(intention: Intention, wildcards: Wildcards) -> Section:
    return stages.EvaluateAgentConfig(
        arm=wildcards["arm"],
        seed=int(wildcards["seed"]),
        temperature=intention.grpo.temperature,
        policy=_policy(intention),
        environment=intention.environment,
        simulator=intention.simulator,
        evaluation=_evaluation(intention, unread=("every", "samples", "thresholds", "primary")),
    )


def _collect_agents(intention: Intention, _: Wildcards) -> Section:
    return stages.CollectAgentsConfig(runs=tuple(runs(intention)))


def _compare_arms(intention: Intention, _: Wildcards) -> Section:
    return stages.CompareArmsConfig(
        arms=_complete_arms(intention),
        reference_arm=intention.reference_arm,
        document_arm=intention.document_arm,
        evaluation=intention.evaluation,
    )


def _shown(intention: Intention) -> dict[str, object]:
    return {
        "arms": _complete_arms(intention),
        "reference_arm": intention.reference_arm,
        "document_arm": intention.document_arm,
        "grpo": intention.grpo,
        "environment": intention.environment,
        "max_context": intention.model.max_context,
        "evaluation": intention.evaluation,
        "engine": intention.engine,
        "is_world": is_world(intention),
        "scale": scale(intention),
    }


def _tabulate_agents(intention: Intention, _: Wildcards) -> Section:
    return stages.TabulateAgentsConfig.model_validate(_shown(intention))


def _plot_agents(intention: Intention, _: Wildcards) -> Section:
    return stages.PlotAgentsConfig.model_validate(_shown(intention))


def _render_verl(intention: Intention, wildcards: Wildcards) -> Section:
    return stages.RenderVerlConfig(
        arm=_arm(intention, wildcards),
        grpo=intention.grpo,
        model=intention.model,
        environment=intention.environment,
        simulator=intention.simulator,
        evaluation=intention.evaluation,
        n_gpus=intention.verl.n_gpus,
        version=intention.verl.version,
    )


def _convert_verl(intention: Intention, wildcards: Wildcards) -> Section:
    return stages.ConvertVerlConfig(
        arm=wildcards["arm"],
        seed=int(wildcards["seed"]),
        planned_steps=intention.grpo.steps,
        n_gpus=intention.verl.n_gpus,
        n_tasks=intention.verl.n_val,
        version=intention.verl.version,
    )
