"""How the claims name metrics and what else differs."""

from __future__ import annotations

from collections.abc import Mapping

from lever_pipe.tables.text import listing

METRICS = {
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
}


def named(metric: str) -> str:
    """Return what a reader calls a metric."""
    return METRICS.get(metric, metric.replace("_", " "))


def by_value(name: str, values: Mapping[str, str]) -> str:
    """Return which runs have which value, as `base checkpoint (RCE epoch 2 for 0.15; RCE epoch 5 for 0.12)`."""
    groups: dict[str, list[str]] = {}
    for run, value in values.items():
        groups.setdefault(value, []).append(run)
    return f"{name} ({'; '.join(f'{value} for {listing(runs)}' for value, runs in groups.items())})"
