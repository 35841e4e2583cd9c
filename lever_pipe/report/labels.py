"""Display names of policies in tables and figures, by the group's name (`policy_names.group_of`)."""

from __future__ import annotations

from lever_pipe.base.policy_names import PolicyName, beta_text
from lever_pipe.experiment.selections import BASELINES
from lever_pipe.report.cells import Cell, code, message

BASELINE_LABELS = {
    "zero_shot": "Zero-shot",
    "random": "Random from the pool",
    "similar_image": "Most similar image",
    "similar_question": "Most similar question",
    "similar_both": "Most similar image and question",
    "oracle": "Pool oracle",
}
LABELS = {
    "sft": "SFT",
    "rce": "RCE",
    "continued": "RCE continued",
    "distil": "Oracle distillation",
    "reinforce": "REINFORCE",
    "grpo": "Offline GRPO, {beta}",
    "on_policy": "On-policy GRPO, {beta}",
}


def label(group: str, *, with_epoch: bool = True) -> Cell:
    """Return a policy's display name, such as `GRPO, KL_BETA 0.15, epoch 3`, with or without its epoch."""
    name = PolicyName.parse(group)
    if name.kind == "baseline":
        return message(BASELINE_LABELS[name.variant]) if name.variant in BASELINES else code(name.variant)
    if name.kind not in LABELS:
        return name.label
    beta = message("mean over KL_BETA") if name.beta is None else message("KL_BETA {beta}", beta=beta_text(name.beta))
    policy = message(LABELS[name.kind], beta=beta)
    return message("{policy}, epoch {epoch}", policy=policy, epoch=name.epoch) if with_epoch else policy


def reading_order(groups: list[str]) -> list[str]:
    """Return the baselines' groups in reading order; other groups come last."""
    ranks = {f"baseline/{name}": index for index, name in enumerate(BASELINES)}
    return sorted(groups, key=lambda group: (ranks.get(group, len(ranks)), group))
