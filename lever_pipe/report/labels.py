"""What policies are called in tables and figures, by the group's name (`policy_names.group_of`)."""

from __future__ import annotations

from lever_pipe.base.policy_names import PolicyName, beta_text
from lever_pipe.experiment.evaluation_config import BASELINES
from lever_pipe.report.cells import Cell, Code, Name, say


def label(group: str, *, with_epoch: bool = True) -> Cell:
    """Return what a policy is called, as `GRPO, KL_BETA 0.15, epoch 3`; without its epoch where that is said apart."""
    name = PolicyName.parse(group)
    suffix = "" if with_epoch else "_last"
    match name.kind:
        case "baseline":
            return say(f"policy.{name.member}") if name.member in BASELINES else Code(name.member)
        case "sft" | "rce" | "continued" | "distil" | "reinforce":
            return say(f"policy.{name.kind}{suffix}", epoch=name.epoch)
        case "grpo" | "on_policy":
            beta = say("policy.all_betas") if name.beta is None else say("policy.beta", beta=beta_text(name.beta))
            return say(f"policy.{name.kind}{suffix}", beta=beta, epoch=name.epoch)
        case _:
            return Name(name.label)


def short(group: str) -> Cell:
    """Return the name of a policy where its kind and epoch are said beside it: its KL_BETA, or its label."""
    name = PolicyName.parse(group)
    if name.kind in ("grpo", "on_policy") and name.beta is not None:
        return Name(beta_text(name.beta))
    return label(group, with_epoch=False)


def reading_order(groups: list[str]) -> list[str]:
    """Return the baselines' groups in reading order, those without a place behind."""
    places = {f"baseline/{name}": index for index, name in enumerate(BASELINES)}
    return sorted(groups, key=lambda group: (places.get(group, len(places)), group))
