"""Costs of learning: the prompts that the LVLM answered for a policy, counted in the same way for all policies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lever_pipe.base.policy_names import beta_text
from lever_pipe.base.records import EpochMetrics

REQUESTED = "lvlm_prompts"
"""Metric of an epoch that sends its policy's samples to the LVLM: the number of different prompts."""


class CostRow(NamedTuple):
    """A line of `costs.csv`: the prompts that one epoch of one seed has learned from since its initialisation.

    `prompts` is the sum of both: every policy learns from the RL data, itself or through its RCE base.
    """

    stage: str
    mode: str
    base_rce_epoch: int | None
    kl_beta: str
    seed: int | None
    epoch: int | None
    rl_data_prompts: int
    """Prompts of the training queries in the RL data; validation queries train nothing."""
    own_prompts: int
    """Different prompts per epoch, summed over the policy's epochs, including prompts that the ledger answered."""
    prompts: int
    preset: str


def training_prompts(valid_BG: NDArray[np.bool_], train_share: float) -> int:
    """Return the number of prompts in the training queries' RL data; each trajectory is one prompt.

    Args:
        valid_BG: [B, G] mask of existing trajectories, queries in id order.
        train_share: share of the queries used for training, from the first one on.

    Source: this project
    """
    return int(valid_BG[: int(train_share * len(valid_BG))].sum())


def cost_rows(metrics: Iterable[EpochMetrics], rl_prompts: Mapping[str, int]) -> list[CostRow]:
    """Return the costs of all trained epochs, in their order; supervised epochs have none, as they use no RL data.

    Args:
        metrics: of every epoch of every run.
        rl_prompts: prompts of each preset's RL data.
    """
    rows = [row for row in metrics if row.policy.kind != "sft"]
    by_epoch = {row.policy: int(row.values.get(REQUESTED, 0)) for row in rows}
    costs = []
    for row in rows:
        name = row.policy
        prompts = sum(by_epoch.get(name.at(epoch), 0) for epoch in range(1, (name.epoch or 0) + 1))
        shared = rl_prompts[name.preset]
        beta = "" if name.beta is None else beta_text(name.beta)
        numbers = (name.base, beta, name.seed, name.epoch, shared, prompts, shared + prompts)
        costs.append(CostRow(name.phase, name.mode, *numbers, name.preset))
    return costs
