"""What is measured about agreement, one row each, and which policies and pairs a reader asks for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from lever_pipe.base.policy_names import PolicyName, group_of
from lever_pipe.metrics.agreement import ParameterDifference
from lever_pipe.report.tables.policies import BASELINE_ORDER


class PairRow(NamedTuple):
    """A line of `agreement.csv`: shares of queries in [0, 1] at one number of shots."""

    left: str
    right: str
    shots: int
    as_sequence: float
    as_set: float
    at_position: float  # of the last of the shots


class ParameterRow(NamedTuple):
    """A line of `parameters.csv`: how a policy's parameters differ from those it started from."""

    policy: str
    base: str
    difference: ParameterDifference


class PromptRow(NamedTuple):
    """A line of `prompts.csv`; prompts with the same image, question and demonstrations count once."""

    policy: str
    shots: int
    n_queries: int
    n_distinct_prompts: int


@dataclass(frozen=True, slots=True)
class AgreementRows:
    """Everything that the tables are made of."""

    pairs: Sequence[PairRow]
    parameters: Sequence[ParameterRow]
    prompts: Sequence[PromptRow]


def pairs_of(policies: Sequence[str]) -> list[tuple[int, int]]:
    """Return the positions of the pairs that a reader asks for.

    All within one preset and seed, each against every baseline, and the seeds of one policy against each other.
    """
    names = list(map(PolicyName.parse, policies))
    runs = [name.batch if name.preset else "" for name in names]
    groups = [group_of(name) for name in policies]
    return [
        (i, j)
        for i, j in combinations(range(len(policies)), 2)
        if "" in (runs[i], runs[j]) or runs[i] == runs[j] or groups[i] == groups[j]
    ]


def shown_groups(groups: Iterable[str], preset: str) -> list[str]:
    """Return the baselines in reading order and then the `trained_groups` of a preset."""
    known = list(groups)
    baselines = [f"baseline/{name}" for name in BASELINE_ORDER if f"baseline/{name}" in known]
    return [*baselines, *trained_groups(known, preset)]


def trained_groups(groups: Iterable[str], preset: str) -> list[str]:
    """Return the latest RCE base of a preset's GRPO and, from it, the last epoch that each beta has, by beta.

    Without GRPO it is the last RCE epoch.
    """
    own = [name for name in map(PolicyName.parse, groups) if name.preset == preset]
    rce = {name.epoch or 0: str(name) for name in own if name.kind == "rce"}
    grpo = [name for name in own if name.kind == "grpo"]
    if not grpo:
        return [rce[max(rce)]] if rce else []
    base = max(name.base or 0 for name in grpo)
    epochs: dict[float, dict[int, str]] = {}
    for name in grpo:
        if name.base == base:
            epochs.setdefault(name.beta or 0.0, {})[name.epoch or 0] = str(name)
    last = min(max(by_epoch) for by_epoch in epochs.values())
    start = [rce[base]] if base in rce else []
    return start + [epochs[beta][last] for beta in sorted(epochs)]
