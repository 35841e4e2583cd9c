"""The columns of the collected CSV files."""

from __future__ import annotations

SCORES_COLUMNS = (
    "policy",
    "stage",
    "mode",
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
TRAINING_COLUMNS = ("stage", "mode", "base_rce_epoch", "kl_beta", "seed", "epoch", "metric", "value", "preset")
STEPS_COLUMNS = (
    "stage",
    "mode",
    "base_rce_epoch",
    "kl_beta",
    "seed",
    "epoch",
    "step",
    "prompts",
    "metric",
    "value",
    "preset",
)
TIES_COLUMNS = ("mode", "hard", "soft", "relevance", "queries", "differ", "differ_clearly")
"""Behind them stands one column for each number of best selections kept, `best_3`."""
RL_DATA_COLUMNS = ("metric", "value")
EMULATED_SCORES_COLUMNS = (
    "arm",
    "kl_beta",
    "epoch",
    "samples",
    "shots",
    "accuracy",
    "n_questions",
    "n_distinct_prompts",
)
EMULATED_PROMPTS_COLUMNS = ("arm", "shots", "repeated_share", "prompts_a_query_mean", "prompts_a_query_max")
EMULATED_AGREEMENT_COLUMNS = ("arm", "kl_beta", "epoch", "other_kl_beta", "other_epoch", "shots", "identical")
EMULATED_TRAINING_COLUMNS = ("arm", "base_rce_epoch", "kl_beta", "epoch", "metric", "value")
