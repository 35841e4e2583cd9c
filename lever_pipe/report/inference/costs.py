"""What learning costs: the prompts that the LVLM answered for a policy, counted alike for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lever_pipe.base.policy_names import PolicyName, beta_text
from lever_pipe.base.records import EpochMetrics

REQUESTED = "lvlm_prompts"
"""Metric of an epoch that asks the LVLM what its policy draws: different prompts of the epoch."""


class CostRow(NamedTuple):
    """A line of `costs.csv`: what one epoch of one seed has learned from since its initialisation.

    `prompts` is the sum of both: every policy learns from the RL data, itself or through its RCE base.
    """

    stage: str
    mode: str
    base_rce_epoch: int | None
    kl_beta: str
    seed: int | None
    epoch: int | None
    rl_data_prompts: int
    """Of the training queries among the RL data; those of validation queries train nothing."""
    own_prompts: int
    """Different prompts of each of its own epochs, added up; those included that the ledger answered."""
    prompts: int
    preset: str


def training_prompts(valid_BG: NDArray[np.bool_], train_share: float) -> int:
    """Return how many prompts the RL data asked of the queries that train, each trajectory one.

    Args:
        valid_BG: [B, G] which trajectories exist, queries in id order.
        train_share: share of the queries that trains, the first ones.

    Source: this project
    """
    return int(valid_BG[: int(train_share * len(valid_BG))].sum())


def cost_rows(metrics: Iterable[EpochMetrics], rl_prompts: Mapping[str, int]) -> list[CostRow]:
    """Return the costs of all trained epochs, in their order; supervised ones, which learn no RL data, have none.

    Args:
        metrics: of every epoch of every run.
        rl_prompts: prompts of the RL data that a preset learns from, by preset.
    """
    rows = [row for row in metrics if row.policy.stage != "sft"]
    names = [PolicyName.parse(row.policy.name) for row in rows]
    by_epoch = {name: int(row.values.get(REQUESTED, 0)) for name, row in zip(names, rows, strict=True)}
    costs = []
    for name, row in zip(names, rows, strict=True):
        prompts = sum(by_epoch.get(name.at(epoch), 0) for epoch in range(1, (name.epoch or 0) + 1))
        shared = rl_prompts[name.preset]
        beta = "" if name.beta is None else beta_text(name.beta)
        policy = row.policy
        numbers = (policy.base_rce_epoch, beta, policy.seed, policy.epoch, shared, prompts, shared + prompts)
        costs.append(CostRow(policy.stage, policy.mode, *numbers, policy.preset))
    return costs
