"""How the claims name metrics, count things and say what else differs."""

from __future__ import annotations

from collections.abc import Mapping

from lever_pipe.report.tables.text import listing

PRINTED_ONLY = "The sentence is about printed numbers."
"""Why a sentence cannot be asked of numbers that were logged."""
METRICS = {
    "adv_max": "Adv Max",
    "adv_std": "Adv Std",
    "grpo_loss": "GRPO loss",
    "identical_selection_rate": "share of identical selections",
    "kl": "KL",
    "kl_loss": "KL loss",
    "ppo_loss": "PPO loss",
    "loss": "train loss",
    "val_loss": "validation loss",
    "std_advantage": "Adv Std",
    "max_advantage": "Adv Max",
    "pg_loss": "PG loss",
    "mean_sequence_length_tokens_as_labelled": "mean sequence length",
    "response_length_tokens": "response length",
    "train_reward": "training reward",
    "vqa_acc_pct": "accuracy",
    "lr": "learning rate",
    "lr_displayed": "displayed learning rate",
    "max_abs_change_pct": "largest change",
    "mean_abs_weight_diff": "mean difference of the weights",
    "mfu_max": "largest MFU",
    "mfu_min": "smallest MFU",
    "n_gpus": "number of GPUs",
    "rollout_n": "number of responses a prompt",
    "throughput_tokens_per_s_max": "largest throughput",
    "throughput_tokens_per_s_min": "smallest throughput",
    "time_per_step_diff_s_max": "largest extra time of a step",
    "time_per_step_diff_s_min": "smallest extra time of a step",
    "time_per_step_s_max": "longest time of a step",
    "time_per_step_s_min": "shortest time of a step",
    "total_steps_claimed": "stated number of steps",
    "wandb_run": "name of the log",
}


def named(metric: str) -> str:
    """Return what a reader calls a metric."""
    return METRICS.get(metric, metric.replace("_", " "))


def by_value(name: str, values: Mapping[str, str]) -> str:
    """Return which runs have which value, as `base checkpoint (0.15: RCE epoch 2) (0.12 and 0.18: RCE epoch 5)`.

    Every value stands in brackets of its own, because it may hold any joint, `; ` among them.
    """
    groups: dict[str, list[str]] = {}
    for run, value in values.items():
        groups.setdefault(value, []).append(run)
    return name + "".join(f" ({listing(runs)}: {value})" for value, runs in groups.items())


def counted(n: int, what: str) -> str:
    """Return `1 seed` or `3 seeds`."""
    return f"{n} {what}{'s' * (n != 1)}"
