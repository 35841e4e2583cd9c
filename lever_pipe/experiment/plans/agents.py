"""Study `intention`: its runs and files, and the configurations of its stages."""

from __future__ import annotations

from lever_pipe.base.policy_names import PolicyName
from lever_pipe.base.provenance import canonical_json
from lever_pipe.experiment.agent_evaluation import AgentRun, EvaluateAgentConfig, EvaluateStartConfig
from lever_pipe.experiment.agent_model import WORDS, PolicyConfig
from lever_pipe.experiment.agent_results import CollectAgentsConfig, CollectDialoguesConfig, CompareArmsConfig
from lever_pipe.experiment.agent_tasks import PrepareTasksConfig
from lever_pipe.experiment.agent_training import OF_GRPO, AgentArm, AgentGrpo, TrainAgentConfig
from lever_pipe.experiment.intention import ConvertVerlConfig, Intention, RenderVerlConfig
from lever_pipe.experiment.plans.grid import Wildcards
from lever_pipe.experiment.plans.models import identity_of_model
from lever_pipe.experiment.served_agents import EvaluateServedConfig
from lever_pipe.experiment.studies import Experiment
from lever_pipe.experiment.sweeps import swept
from lever_pipe.experiment.warm_start import WarmStartAgentConfig


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


def filled_arms(intention: Intention) -> tuple[AgentArm, ...]:
    """Return the written arms, with unset values filled in from `grpo`."""
    return tuple(map(intention.filled, intention.written_arms))


def _policy(intention: Intention) -> PolicyConfig:
    """Return the policy's config; the folder's path is replaced by the identity of its content."""
    model = intention.model
    return PolicyConfig(model=model.model_copy(update={"folder": ""}), model_identity=identity_of_model(model.folder))


def _arm(intention: Intention, wildcards: Wildcards) -> AgentArm:
    """Return a run's arm with only its seed, and with unset values filled in from `grpo`."""
    arm = next(arm for arm in intention.arms if arm.name == wildcards["arm"])
    return intention.filled(arm).model_copy(update={"seeds": (int(wildcards["seed"]),)})


def prepare_tasks(experiment: Experiment, _: Wildcards) -> PrepareTasksConfig:
    tasks = experiment.intention.tasks
    return PrepareTasksConfig(source=tasks.source, synthetic=tasks.synthetic if tasks.source == "synthetic" else None)


def warm_start_agent(experiment: Experiment, _: Wildcards) -> WarmStartAgentConfig:
    return WarmStartAgentConfig.of(experiment.intention, policy=_policy(experiment.intention))


def train_agent(experiment: Experiment, wildcards: Wildcards) -> TrainAgentConfig:
    intention = experiment.intention
    arm, grpo = _arm(intention, wildcards), intention.grpo
    overrides = arm.model_dump(include={"trajectory_score", "learning_rate"})
    bounds = {key: getattr(arm, key) or getattr(grpo, key) for key in OF_GRPO}
    return TrainAgentConfig.of(
        intention,
        arm=arm,
        grpo=grpo.model_copy(update=overrides | bounds),
        policy=_policy(intention),
        evaluation=intention.evaluation.at_defaults("test_samples", "temperatures", "primary"),
    )


def evaluate_start(experiment: Experiment, _: Wildcards) -> EvaluateStartConfig:
    intention = experiment.intention
    return EvaluateStartConfig(
        temperature=intention.grpo.temperature,
        policy=_policy(intention),
        environment=intention.environment,
        simulator=intention.simulator,
        evaluation=intention.evaluation.at_defaults("every", "samples", "primary"),
    )


def evaluate_agent(experiment: Experiment, wildcards: Wildcards) -> EvaluateAgentConfig:
    start = evaluate_start(experiment, wildcards)
    return EvaluateAgentConfig.of(start, arm=wildcards["arm"], seed=wildcards["seed"])


def evaluate_served(experiment: Experiment, wildcards: Wildcards) -> EvaluateServedConfig:
    """Without sampled episodes, the settings of samples are unread and the temperature is the default."""
    intention = experiment.intention
    agent = next(agent for agent in intention.served if agent.name == wildcards["arm"])
    is_sampled = "sampled" in agent.modes
    of_samples = () if is_sampled else ("test_samples", "seed")
    unread = ("every", "samples", "batch", "temperatures", "primary", *of_samples)
    return EvaluateServedConfig(
        agent=agent,
        temperature=(intention.grpo if is_sampled else AgentGrpo()).temperature,
        environment=intention.environment,
        simulator=intention.simulator,
        evaluation=intention.evaluation.at_defaults(*unread),
    )


def collect_agents(experiment: Experiment, _: Wildcards) -> CollectAgentsConfig:
    intention = experiment.intention
    return CollectAgentsConfig(runs=runs(intention), served=[agent.name for agent in intention.served])


def collect_dialogues(experiment: Experiment, _: Wildcards) -> CollectDialoguesConfig:
    intention = experiment.intention
    return CollectDialoguesConfig(
        runs=runs(intention),
        arms=filled_arms(intention),
        reference_arm=intention.reference_arm,
        checkpoint=intention.evaluation.primary.checkpoint,
    )


def compare_arms(experiment: Experiment, _: Wildcards) -> CompareArmsConfig:
    intention = experiment.intention
    cells = swept(intention.sweeps)
    of_sweeps = [arm for arm in intention.arms if arm.name in cells]
    return CompareArmsConfig.of(intention, arms=filled_arms(intention), swept=of_sweeps)


def render_verl(experiment: Experiment, wildcards: Wildcards) -> RenderVerlConfig:
    intention, verl = experiment.intention, experiment.intention.verl
    arm = _arm(intention, wildcards)
    return RenderVerlConfig.of(intention, arm=arm, n_gpus=verl.n_gpus, version=verl.version)


def convert_verl(experiment: Experiment, wildcards: Wildcards) -> ConvertVerlConfig:
    intention, verl = experiment.intention, experiment.intention.verl
    return ConvertVerlConfig(
        arm=wildcards["arm"],
        seed=wildcards["seed"],
        planned_steps=intention.grpo.steps,
        n_gpus=verl.n_gpus,
        n_tasks=verl.n_val,
        version=verl.version,
    )
