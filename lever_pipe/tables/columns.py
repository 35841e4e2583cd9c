"""The columns of the collected CSV files."""

from __future__ import annotations

SCORES_COLUMNS = (
    "policy",
    "stage",
    "base_rce_epoch",
    "kl_beta",
    "seed",
    "epoch",
    "subset",
    "samples",
    "shots",
    "accuracy",
    "n_questions",
    "n_distinct_prompts",
    "preset",
)
TRAINING_COLUMNS = ("stage", "base_rce_epoch", "kl_beta", "seed", "epoch", "metric", "value", "preset")
RL_DATA_COLUMNS = ("metric", "value")
