"""The folder from which one arm and seed is trained with the original trainer, as texts by file name.

What that cannot express is refused where it would change what a run studies, else told in words.

`overrides.txt` is our configuration as Hydra overrides, one a line. Key names are those of UserRL's fork of verl
0.4.0.dev. What is not set there has its default, and what the documents do not state is marked in
`config/intention_qwen3_8b.yaml`.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Iterator

import jinja2

from lever_pipe.base.parsing import require_none
from lever_pipe.base.sections import Section
from lever_pipe.experiment.agent_config import Endpoint, Environment, Simulator
from lever_pipe.experiment.agent_stage_configs import RenderVerlConfig
from lever_pipe.intention.verl import scripts

SECONDS_OF_A_STEP = 300
"""Time limit of a job; the published steps took 193 to 220 s."""
TEMPLATES = {
    "README.txt": scripts.README,
    "export_scalars.py": scripts.EXPORT_SCALARS,
    "launch.sbatch": scripts.LAUNCH_JOB,
    "launch.sh": scripts.LAUNCH,
    "simulator.sbatch": scripts.SIMULATOR_JOB,
    "submit.sh": scripts.SUBMIT,
    "tool_config.yaml": scripts.TOOL_CONFIG,
}


def launch_files(config: RenderVerlConfig) -> dict[str, str]:
    """Return every launch file of one arm and seed; the same configuration gives the same bytes.

    Raises:
        ConfigError: the original cannot express the configuration; all such values at once.
    """
    require_none(faults(config), f"engine verl, arm {config.arm.name}")
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # shell and plain text: every value passes the filter `sh` or stands in prose
    )
    environment.filters["sh"] = shlex.quote
    values = _values(config)
    files = {name: environment.from_string(text).render(values) for name, text in TEMPLATES.items()}
    return {**files, "overrides.txt": "\n".join(override_lines(config)) + "\n"}


def _values(config: RenderVerlConfig) -> dict[str, object]:
    arm, seed = config.arm.name, config.arm.seeds[0]
    return {
        "arm": arm,
        "seed": seed,
        "run_folder": f"{arm}/seed-{seed}",
        "model_folder": config.model.folder,
        "user_model": config.simulator.endpoint.model,
        "version": config.version,
        "n_gpus": config.n_gpus,
        "hours": math.ceil(config.grpo.steps * SECONDS_OF_A_STEP / 3600) + 1,
        "differences": differences(config),
    }


Value = bool | int | float | str | tuple[str, ...]
Groups = dict[str, dict[str, Value]]
"""Settings by the title of the group that they belong to."""

TRAJECTORY_SCORES = {"mean": "Sum", "r2g": "R2G"}
"""Ours -> the original's; its "Sum" is a mean over turns."""
TURN_CREDITS = {"equalized": "Equalized", "r2g": "R2G", "em": "EM"}
ROLLOUT = "actor_rollout_ref.rollout"
ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
REFERENCE = "actor_rollout_ref.ref"


def override_lines(config: RenderVerlConfig) -> list[str]:
    """Return the lines of `overrides.txt`: comments, and one Hydra override each.

    The configuration is one that `faults` finds nothing in.
    """
    groups = {**_of_the_arm(config), **_of_batches(config), **_of_dialogues(config), **_of_the_run(config)}
    return [
        line
        for title, settings in groups.items()
        for line in (f"# {title}", *(f"{key}={hydra_value(value)}" for key, value in settings.items()))
    ]


def hydra_value(value: Value) -> str:
    """Return a value in Hydra's grammar; texts are quoted, and hold neither quotes nor backslashes."""
    if isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, tuple):
        return f"[{','.join(map(hydra_value, value))}]"
    return f"'{value}'"


def _of_the_arm(config: RenderVerlConfig) -> Groups:
    """Return the factors that arms differ in. Without a KL term the original loads no reference and logs no KL."""
    arm, schedule, grpo = config.arm, config.arm.schedule, config.grpo
    score = TRAJECTORY_SCORES[arm.trajectory_score or grpo.trajectory_score]
    return {
        "what this arm and seed differ in from the others": {
            f"{ACTOR}.use_kl_loss": arm.kl > 0,
            f"{ACTOR}.kl_loss_coef": arm.kl,
            f"{ACTOR}.entropy_coeff": arm.entropy,
            f"{ACTOR}.optim.lr": arm.learning_rate or grpo.learning_rate,
            f"{ACTOR}.optim.warmup_style": schedule.kind,
            f"{ACTOR}.optim.lr_warmup_steps": schedule.warmup_steps,
            f"{ACTOR}.optim.min_lr_ratio": schedule.minimum,
            f"{ROLLOUT}.multi_turn.trajectory_score_method": score,
            # `++` sets a key whether or not the version's configuration has it.
            "++data.seed": arm.seeds[0],
            "trainer.experiment_name": f"{arm.name}_seed_{arm.seeds[0]}",
        },
        "advantages": {
            "algorithm.adv_estimator": "grpo_multiturn",
            "algorithm.gamma": grpo.gamma,
            "algorithm.use_kl_in_reward": False,
            f"{ROLLOUT}.multi_turn.turn_level_method": TURN_CREDITS[grpo.turn_credit],
        },
    }


def _of_batches(config: RenderVerlConfig) -> Groups:
    grpo = config.grpo
    return {
        "batches: prompts of a step, their episodes, prompts of an update, episodes of a pass": {
            "data.train_batch_size": grpo.prompts,
            f"{ROLLOUT}.n": grpo.group,
            f"{ACTOR}.ppo_mini_batch_size": grpo.prompts // grpo.minibatches,
            f"{ACTOR}.ppo_micro_batch_size_per_gpu": grpo.micro_batch,
            f"{ACTOR}.ppo_epochs": 1,
            f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": grpo.micro_batch,
            f"{REFERENCE}.log_prob_micro_batch_size_per_gpu": grpo.micro_batch,
            "trainer.nnodes": 1,
            "trainer.n_gpus_per_node": config.n_gpus,
        },
        "loss and optimiser": {
            f"{ACTOR}.clip_ratio": grpo.clip_low,
            f"{ACTOR}.clip_ratio_low": grpo.clip_low,
            f"{ACTOR}.clip_ratio_high": grpo.clip_high,
            f"{ACTOR}.clip_ratio_c": grpo.dual_clip,
            f"{ACTOR}.loss_agg_mode": "token-mean",
            f"{ACTOR}.kl_loss_type": "low_var_kl",
            f"{ACTOR}.grad_clip": grpo.max_gradient_norm,
            f"{ACTOR}.optim.weight_decay": grpo.weight_decay,
            f"{ACTOR}.optim.num_cycles": 0.5,
        },
    }


def _of_dialogues(config: RenderVerlConfig) -> Groups:
    return {
        "dialogues": {
            "data.max_prompt_length": PROMPT_TOKENS,
            "data.max_response_length": config.model.max_context - PROMPT_TOKENS,
            "data.filter_overlong_prompts": True,
            "data.truncation": "error",
            "data.return_raw_chat": True,
            f"{ROLLOUT}.name": "sglang",
            f"{ROLLOUT}.mode": "sync",
            f"{ROLLOUT}.dtype": config.model.dtype,
            f"{ROLLOUT}.tensor_model_parallel_size": 1,
            f"{ROLLOUT}.gpu_memory_utilization": 0.5,
            f"{ROLLOUT}.temperature": config.grpo.temperature,
            f"{ROLLOUT}.top_p": 1,
            f"{ROLLOUT}.top_k": -1,
            f"{ROLLOUT}.val_kwargs.do_sample": False,
            f"{ROLLOUT}.val_kwargs.n": 1,
            f"{ROLLOUT}.multi_turn.enable": True,
            f"{ROLLOUT}.multi_turn.max_turns": config.environment.max_turns,
            f"{ROLLOUT}.multi_turn.model_name": config.simulator.endpoint.model,
        }
    }


def _of_the_run(config: RenderVerlConfig) -> Groups:
    steps, every = config.grpo.steps, config.evaluation.every
    return {
        "memory": {
            "actor_rollout_ref.hybrid_engine": True,
            f"{MODEL}.use_remove_padding": True,
            f"{MODEL}.enable_gradient_checkpointing": True,
            f"{MODEL}.enable_activation_offload": True,
            f"{ACTOR}.fsdp_config.param_offload": False,
            f"{ACTOR}.fsdp_config.optimizer_offload": False,
            f"{REFERENCE}.fsdp_config.param_offload": True,
        },
        "run: total_training_steps ends it (an epoch has a step at least); the published runs did not validate at 0": {
            "trainer.total_training_steps": steps,
            "trainer.total_epochs": steps,
            "trainer.val_before_train": True,
            "trainer.test_freq": every,
            "trainer.save_freq": every,
            "trainer.max_actor_ckpt_to_keep": 2,
            "trainer.critic_warmup": 0,
            "trainer.logger": ("console", "tensorboard"),
            "trainer.project_name": "lever_pipe_intention",
        },
    }


PROMPT_TOKENS = 1152
"""Share of the context that the prompt may fill; the response has the rest (published)."""
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*")
UNSAFE = re.compile(r"""["'\\$]""")
"""What a quoted Hydra value would not take as it stands."""
FAULTS = ("leak_details", "silent_failures", "count_duplicates", "last_call_only")
"""Switches of the simulator that the original has no switch for: it always behaves so."""
FIXED = tuple(name for name in Environment.model_fields if name != "max_turns")
"""Rules of the environment that stand in the original's code."""


def faults(config: RenderVerlConfig) -> list[str]:
    """Return a line for each value that the original trainer cannot run with, all at once."""
    parts = (_scores(config), _schedule(config), _model(config), _rules(config), _user(config), _batches(config))
    return [f"intention.{line}" for part in parts for line in part]


def differences(config: RenderVerlConfig) -> list[str]:
    """Return what a run of the original does otherwise than the configuration says; nothing of it can be set there."""
    always_on = [name for name in FAULTS if not getattr(config.simulator, name)]
    told = [
        "The seed orders the tasks, no more: SGLang draws from seeds of its own, so two runs of one seed differ.",
        "Only greedy validation, one episode a task; no sampled curve, no record of single episodes.",
        "Loss terms are means within a micro-batch, and micro-batches count alike: their size moves the loss.",
        "The agent's turns are tokenised again from the parsed call; the sampled token ids are not kept.",
        "Several calls in one turn run at the same time.",
        f"A turn has no token limit of its own (model.max_new_tokens={config.model.max_new_tokens} has none there).",
        f"Failed simulator calls stop nothing (simulator.failure_limit={config.simulator.failure_limit:g} has none).",
    ]
    if always_on:
        named = ", ".join(f"simulator.{name}" for name in always_on)
        told.append(f"It always behaves as if these were true: {named}.")
    return told


def _scores(config: RenderVerlConfig) -> Iterator[str]:
    if config.arm.trajectory_score == "sum":
        yield (
            "grpo.trajectory_score: must be mean or r2g with engine verl, got 'sum': what the original calls \"Sum\" is"
            " the mean over turns. Choose one of them, or engine native."
        )


def _schedule(config: RenderVerlConfig) -> Iterator[str]:
    schedule = config.arm.schedule
    if schedule.kind == "constant" and schedule.warmup_steps and schedule.minimum:
        yield (
            f"arms.{config.arm.name}.schedule.minimum: must be 0 for a constant rate with warm-up, got"
            f" {schedule.minimum:g}: the original warms up from 0. Write 0, or kind: cosine."
        )


def _model(config: RenderVerlConfig) -> Iterator[str]:
    model = config.model
    if not model.folder:
        yield "model.folder: must name a model folder with engine verl, got ''. Name one."
    elif not model.folder.isprintable() or UNSAFE.search(model.folder):
        yield f"model.folder: must be printable and without quotes, \\ and $, got {model.folder!r}. Rename the folder."
    if model.codec != "hf":
        yield f"model.codec: must be 'hf' with engine verl, got {model.codec!r}. Write hf."
    if model.dtype != "bfloat16":
        yield f"model.dtype: must be bfloat16, as the original's rollouts are, got {model.dtype!r}. Write bfloat16."
    if model.max_context <= PROMPT_TOKENS:
        yield (
            f"model.max_context: must exceed the prompt's {PROMPT_TOKENS} tokens, got {model.max_context}. Raise it."
        )
    if not config.version.isprintable():
        yield f"verl.version: must be one printable line, got {config.version!r}. Shorten it."


def _rules(config: RenderVerlConfig) -> Iterator[str]:
    yield from _fixed("environment", config.environment, Environment(), FIXED)


def _user(config: RenderVerlConfig) -> Iterator[str]:
    simulator, endpoint = config.simulator, config.simulator.endpoint
    if simulator.kind != "openai":
        yield f"simulator.kind: must be 'openai' with engine verl, got {simulator.kind!r}. Write openai."
    if not MODEL_NAME.fullmatch(endpoint.model):
        rule = "must be letters, digits and . _ : / @ + -"
        yield f"simulator.endpoint.model: {rule}, got {endpoint.model!r}. Serve it under such a name."
    yield from _fixed("simulator.endpoint", endpoint, Endpoint(), ("temperature", "max_tokens"))
    yield from _fixed("simulator", simulator, Simulator(), ("judge_miss", "reply_noise"))


def _fixed(place: str, section: Section, published: Section, names: Iterable[str]) -> Iterator[str]:
    """Yield the values that differ from the published ones, which stand in the original's code."""
    for name in names:
        value, only = getattr(section, name), getattr(published, name)
        if value != only:
            yield f"{place}.{name}: must be {only!r} with engine verl, got {value!r}. Leave it out."


def _batches(config: RenderVerlConfig) -> Iterator[str]:
    """Yield what does not divide: the original would round down and take another number of updates, or stop."""
    grpo, gpus = config.grpo, config.n_gpus
    episodes = grpo.prompts * grpo.group
    if episodes % gpus:
        product = f"{grpo.prompts} x {grpo.group} = {episodes}"
        yield f"grpo.prompts: times grpo.group must be a multiple of verl.n_gpus={gpus}, got {product}. Change one."
        return
    update = episodes // grpo.minibatches
    if update % gpus:
        yield (
            f"grpo.minibatches: the {update} episodes of an update must be a multiple of verl.n_gpus={gpus}, got"
            f" minibatches {grpo.minibatches}. Change one of them."
        )
        return
    if update // gpus % grpo.micro_batch:
        yield (
            f"grpo.micro_batch: must divide the {update // gpus} episodes that an update has on each of {gpus} GPUs,"
            f" got {grpo.micro_batch}. Choose a divisor."
        )
