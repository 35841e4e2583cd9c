"""How many jobs of each rule an edit of the smoke experiment reruns."""

from __future__ import annotations

# The smoke configuration: one seed, an SFT epoch, 2 RCE epochs, betas {0, 0.15} x 2 GRPO epochs, a long run of 3 epochs
# for 0.15; on-policy betas {0, 1} and REINFORCE x 2 epochs, 2 each of distillation and of continued RCE.
SFT_EPOCHS, RCE_EPOCHS, GRPO_EPOCHS, LONG_ONLY, BASELINES = 1, 2, 4, 1, 6
ON_POLICY_EPOCHS, DISTIL_EPOCHS = 6, 2
EXTRA_OBJECTIVES = {"train_distil_epoch": DISTIL_EPOCHS, "train_continued_epoch": 2}
# Emulated: 2 RCE epochs, three betas from the second; three arms.
EMULATED_RCE, EMULATED_GRPO, ARMS = 2, 3, 3
# Every number of the report comes from the evidence: a changed number rewrites the figures and the pages.
FROM_EVIDENCE = dict.fromkeys(("collect_evidence", "plot_figures", "build_report"), 1)
OF_SELECTORS = ("collect_results", "collect_lineage", "collect_samples", "compare_policies", "measure_drift")
WITHOUT_CONTROLS = dict.fromkeys(OF_SELECTORS, 1) | FROM_EVIDENCE
REPORT = WITHOUT_CONTROLS | {"answer_controls": 1}
"""Controls are of one run of each kind, of the first seed and the least KL_BETA."""
EMULATION_BELOW_TRAINING = {"emulate_selections": ARMS, "score_emulation": 1, **FROM_EVIDENCE}
EMULATED_GRPO_AND_BELOW = {"emulate_untouched": 1, **EMULATION_BELOW_TRAINING}
SCORED = 2
"""Batches that are scored one by one: the baselines, and the policies of the seed."""
SEED_EVALUATED = SFT_EPOCHS + RCE_EPOCHS + GRPO_EPOCHS + ON_POLICY_EPOCHS + sum(EXTRA_OBJECTIVES.values())
OFFLINE_AND_BELOW = {
    "train_grpo_epoch": GRPO_EPOCHS + LONG_ONLY,
    "select_demonstrations": GRPO_EPOCHS,
    "answer_prompts": 1,
    "score_answers": 1,
    **REPORT,
}
# RCE that goes on beside GRPO takes GRPO's learning rate.
OFFLINE_RATE_AND_BELOW = {
    **OFFLINE_AND_BELOW,
    "train_continued_epoch": EXTRA_OBJECTIVES["train_continued_epoch"],
    "select_demonstrations": GRPO_EPOCHS + EXTRA_OBJECTIVES["train_continued_epoch"],
}
GRPO_AND_BELOW = {
    **OFFLINE_AND_BELOW,
    "train_on_policy_epoch": ON_POLICY_EPOCHS,
    "select_demonstrations": GRPO_EPOCHS + ON_POLICY_EPOCHS,
}
# On-policy epochs take the exact divergence for the penalty, which k3 estimates.
K3_AND_BELOW = {
    **OFFLINE_AND_BELOW,
    **EMULATED_GRPO_AND_BELOW,
    "train_grpo_epoch": GRPO_EPOCHS + LONG_ONLY + EMULATED_GRPO,
    "answer_prompts": 2,
}
AGENT_REPORT = dict.fromkeys(("collect_agents", "collect_dialogues", "compare_arms"), 1) | FROM_EVIDENCE
TRAINED_AGENTS = {"train_agent": 2, "evaluate_agent": 2, **AGENT_REPORT}
AGENTS_AND_BELOW = {**TRAINED_AGENTS, "evaluate_start": 1}
BELOW_RL_DATA = {
    "reward_groups": 2,
    "measure_rewards": 1,
    **EXTRA_OBJECTIVES,
    "train_rce_epoch": RCE_EPOCHS + EMULATED_RCE,
    **K3_AND_BELOW,
    "train_on_policy_epoch": ON_POLICY_EPOCHS,
    "select_demonstrations": SEED_EVALUATED - SFT_EPOCHS,
}
