"""What is measured about agreement, one row each, and which policies and pairs a reader asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from lever_pipe.base.policy_names import PolicyName, group_of
from lever_pipe.metrics.agreement import ParameterDifference


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
