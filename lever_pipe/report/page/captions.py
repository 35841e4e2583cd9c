"""Titles and captions of the figures, by the stem of their files."""

from __future__ import annotations

from collections.abc import Mapping

CAPTIONS: Mapping[str, tuple[str, str]] = {
    "frontier": (
        "KL against accuracy",
        (
            "Left, how far a policy moved from its RCE base; right, the KL_BETA that held it. Both axes are "
            "linear below their first tick, logarithmic beyond."
        ),
    ),
    "learning": ("What each GRPO epoch adds", "Dots are seeds, each against its own RCE base; lines join their means."),
    "primary": (
        "Primary comparisons",
        "Last epoch against the RCE base, paired by question and seed; bars are 95 % intervals, not adjusted.",
    ),
    "selections": (
        "What the chosen demonstrations share with their question",
        (
            "Percent of the demonstrations at each rank that share with the question its relation, the value "
            "asked about, both (the exact fact), or its object."
        ),
    ),
    "copying": (
        "Help or carrying",
        (
            "At the largest shot count. Left, what the LVLM earns, what a vote over the answers shown would, and the "
            "LVLM where a shown answer earns anything or none does. Right, how many answers the demonstration at each "
            "rank has; the last stands next to the question."
        ),
    ),
    "agent_arms": (
        "Every arm against the reference",
        "Held-out tasks, last checkpoint, by decoding; bars are 95 % intervals, not adjusted.",
    ),
    "agent_validation": (
        "Validation reward by step",
        (
            "Lines are means over seeds, dots single seeds of arms with several. All evaluations share their "
            "random numbers."
        ),
    ),
    "agent_kl": (
        "Reward against KL and entropy",
        "Filled marks are sampled, open ones greedy; bars are 95 % intervals.",
    ),
    "training_curves": (
        "Training curves of the long runs",
        "Six metrics of offline GRPO by epoch, as document 000 plots them; mean over the seeds of the long runs.",
    ),
    "published_rewards": (
        "Published validation rewards",
        "One run each, greedy, 40 tasks; hollow points are document 003's estimates and enter no statistic.",
    ),
    "agent_training": ("Training of the arms", "Means over seeds and five neighbouring steps."),
    "rce": ("RCE by epoch", "What every GRPO run starts from."),
    "sweeps_selector": (
        "Sweeps of the selector",
        (
            "The primary endpoint of every cell; bars are 95 % intervals, not adjusted. In a heat map the frame "
            "is the arm that is swept, and an asterisk a cell that is separated from it (Holm over the sweep)."
        ),
    ),
    "sweeps_agent": (
        "Sweeps of the agent",
        (
            "The primary endpoint of every cell; bars are 95 % intervals, not adjusted. In a heat map the frame "
            "is the arm that is swept, and an asterisk a cell that is separated from it (Holm over the sweep)."
        ),
    ),
}
