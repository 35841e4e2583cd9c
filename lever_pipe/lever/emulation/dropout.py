"""The fault that GRPO compared a policy with dropout to a reference without."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lever_pipe.lever.selector.network import PointerSelector
from lever_pipe.lever.training.embeddings import EmbeddingTable, FrozenSelector
from lever_pipe.lever.training.groups import Groups
from lever_pipe.lever.training.grpo import BetaController, plan_grpo_epoch
from lever_pipe.lever.training.policies import PolicyPair

BATCH = 256
"""Queries a batch where nothing is trained; means over queries do not depend on it."""


@dataclass(frozen=True, slots=True)
class NoisyPolicies:
    """The trained policy with dropout, as its reference never is: the ratio is off 1 before any update."""

    policy: PointerSelector
    reference: FrozenSelector

    def trained(self, table: EmbeddingTable, batch: Groups) -> Tensor:
        """Return the logits of the trained policy (`EmbeddingTable.scores`)."""
        if not self.policy.training:
            self.policy.train()
        return table.scores(self.policy, batch)


@torch.no_grad()
def epoch_without_updates(
    pair: PolicyPair,
    table: EmbeddingTable,
    kept: tuple[Groups, Tensor],
    *,
    clip_epsilon: float,
    generator: torch.Generator,
) -> dict[str, float]:
    """Return what an epoch would log if no step were taken: query-weighted means of every metric.

    Dropout draws from torch's ambient stream.
    """
    n_queries = len(kept[0])
    plan = plan_grpo_epoch(
        pair,
        table,
        kept,
        BetaController(0.0, None),
        batch_queries=BATCH,
        clip_epsilon=clip_epsilon,
        generator=generator,
    )
    totals: dict[str, float] = {}
    for batch, step in plan:
        for name, value in step(batch).values.items():
            totals[name] = totals.get(name, 0.0) + len(batch) / n_queries * value
    del totals["kl_loss"]  # no penalty is weighted where nothing is trained
    return totals
