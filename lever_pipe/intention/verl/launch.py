"""The folder from which one arm and seed is trained with the original trainer, as texts by file name.

`overrides.txt` is our configuration as Hydra overrides, one a line. Key names are those of UserRL's fork of verl
0.4.0.dev. What is not set there has its default, and what the documents do not state is marked in
`config/intention_qwen3_8b.yaml`.
"""

from __future__ import annotations

import math
import shlex

import jinja2

from lever_pipe.base.parsing import require_none
from lever_pipe.experiment.agent_stage_configs import RenderVerlConfig
from lever_pipe.intention.verl import limits, scripts
from lever_pipe.intention.verl.limits import PROMPT_TOKENS

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
    require_none(limits.faults(config), f"engine verl, arm {config.arm.name}")
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


def run_folder(arm: str, seed: int) -> str:
    """Return where a run's log lies below `intention.verl.logs`."""
    return f"{arm}/seed-{seed}"


def _values(config: RenderVerlConfig) -> dict[str, object]:
    arm, seed = config.arm.name, config.arm.seeds[0]
    return {
        "arm": arm,
        "seed": seed,
        "run_folder": run_folder(arm, seed),
        "model_folder": config.model.folder,
        "user_model": config.simulator.endpoint.model,
        "version": config.version,
        "n_gpus": config.n_gpus,
        "hours": math.ceil(config.grpo.steps * SECONDS_OF_A_STEP / 3600) + 1,
        "differences": limits.differences(config),
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

    The configuration is one that `limits.faults` finds nothing in.
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
