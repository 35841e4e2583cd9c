"""Policies that stand in one row of a table or one line of a figure: seeds or draws of the same thing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from lever_pipe.base.policy_names import PolicyName, group_of
from lever_pipe.report.tables.results import Mean, means, offline_grpo, split_by
from lever_pipe.report.tables.text import beta_text

BASELINE_ORDER = ("zero_shot", "random", "similar_image", "similar_question", "similar_both", "oracle")
BASELINE_LABELS = {
    "zero_shot": "Zero-shot",
    "random": "Random from the pool",
    "similar_image": "Most similar image",
    "similar_question": "Most similar question",
    "similar_both": "Most similar image and question",
    "oracle": "Pool oracle (knows the answers)",
}

MARK_LABELS = {"reinforce": "REINFORCE", "distil": "Oracle distillation", "continued": "Continued RCE"}
"""Other objectives that stand beside on-policy GRPO."""


@dataclass(frozen=True)
class PolicyGroup:
    """Runs that differ in their seed or draw only, with all their rows of `scores.csv`."""

    label: str
    kind: str  # `baseline`, `rce`, `grpo`
    rows: pd.DataFrame
    base: int | None = None
    beta: float | None = None
    epoch: int | None = None

    @property
    def runs(self) -> int:
        """Return the number of seeds or draws."""
        return int(self.rows["policy"].nunique())

    @property
    def group(self) -> str:
        """Return the name of these policies without their seed or draw."""
        prefix = "baseline/" if self.kind == "baseline" else ""
        return group_of(f"{prefix}{self.rows['policy'].iloc[0]}")

    def by_shots(self, samples: int, shots: Iterable[int]) -> dict[int, Mean]:
        """Return mean prefix accuracy over the runs by shots; a policy without shots has one value for all."""
        rows = self.rows[(self.rows["subset"] == "prefix") & (self.rows["samples"] == samples)]
        found = means(rows, ["shots"], "accuracy")
        if list(found) == [0]:
            return dict.fromkeys(shots, found[0])
        return {k: found[k] for k in shots if k in found}


def label_of(group: str) -> str:
    """Return what a group's name (`policy_names.group_of`) is called in tables and figures."""
    name = PolicyName.parse(group)
    if name.kind == "baseline":
        return BASELINE_LABELS.get(name.member, name.member.replace("_", " "))
    if name.kind in MARK_LABELS:
        return f"{MARK_LABELS[name.kind]}, epoch {name.epoch}"
    if name.beta is not None or name.is_over_betas:
        how = "On-policy GRPO" if name.kind == "on_policy" else "GRPO"
        what = "mean over all KL_BETA" if name.beta is None else f"KL_BETA={beta_text(name.beta)}"
        return f"{how}, {what}, epoch {name.epoch}"
    return f"RCE epoch {name.epoch}"


def baselines(scores: pd.DataFrame) -> list[PolicyGroup]:
    """Return the baselines; draws of one baseline are one group."""
    rows = scores[scores["stage"] == "baseline"]
    names = rows["policy"].map(lambda name: re.sub(r"-\d+$", "", str(name)))
    known = [name for name in BASELINE_ORDER if name in set(names)]
    others = sorted(set(names) - set(known))
    return [
        PolicyGroup(BASELINE_LABELS.get(name, name.replace("_", " ")), "baseline", rows[names == name])
        for name in [*known, *others]
    ]


def rce_epochs(scores: pd.DataFrame) -> list[PolicyGroup]:
    """Return the RCE epochs, the seeds of an epoch as one group."""
    rows = scores[scores["stage"] == "rce"]
    return [
        PolicyGroup(f"RCE epoch {epoch}", "rce", group, epoch=int(epoch)) for epoch, group in split_by(rows, ["epoch"])
    ]


def grpo_epochs(scores: pd.DataFrame) -> list[PolicyGroup]:
    """Return GRPO by base, epoch and beta, the seeds as one group; the base is named where there are several.

    It is the published, offline objective: on-policy runs have tables and figures of their own.
    """
    rows = offline_grpo(scores)
    several = rows["base_rce_epoch"].nunique() > 1
    found = []
    for (base, epoch, beta), group in split_by(rows, ["base_rce_epoch", "epoch", "kl_beta"]):
        start = f" from RCE epoch {base}" if several else ""
        label = f"GRPO{start}, KL_BETA={beta_text(beta)}, epoch {epoch}"
        found.append(PolicyGroup(label, "grpo", group, base=int(base), beta=float(beta), epoch=int(epoch)))
    return found


def last_grpo(scores: pd.DataFrame) -> list[PolicyGroup]:
    """Return the GRPO groups of the last epoch that every base and beta has."""
    groups = grpo_epochs(scores)
    if not groups:
        return []
    last: dict[tuple[int | None, float | None], int] = {}
    for group in groups:
        key = (group.base, group.beta)
        last[key] = max(last.get(key, 0), group.epoch or 0)
    return [group for group in groups if group.epoch == min(last.values())]
