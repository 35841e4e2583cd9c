"""Emulation of the logged KL of the published run: a policy with dropout against a reference without."""

from __future__ import annotations

import torch
from torch import Tensor

from lever_pipe.lever.selector.embeddings import EmbeddingTable, FrozenSelector
from lever_pipe.lever.selector.network import PointerSelector
from lever_pipe.lever.training.groups import BATCH, Groups, batches
from lever_pipe.lever.training.grpo import grpo_step, reference_log_probs


@torch.no_grad()
def epoch_without_updates(
    policy: PointerSelector,
    reference: FrozenSelector,
    table: EmbeddingTable,
    selected: tuple[Groups, Tensor],
    *,
    has_dropout: bool,
    clip_epsilon: float,
    generator: torch.Generator,
) -> dict[str, float]:
    """Return the metrics of an epoch without optimiser steps: query-weighted means.

    Dropout draws from torch's ambient stream; the reference has no dropout.
    """
    n_queries = len(selected[0])
    order = torch.cat(batches(n_queries, BATCH, generator))
    groups, advantages = selected[0].take(order), selected[1][order]
    anchor, table = reference_log_probs(reference, groups), table.projected_by(policy)
    policy.train(has_dropout)
    totals: dict[str, float] = {}
    for rows in groups.rows(BATCH):
        batch = groups.take(rows)
        scores = table.scores(policy, batch)
        step = grpo_step(scores, anchor[rows], batch, advantages[rows], kl_beta=0.0, clip_epsilon=clip_epsilon)
        for name, value in step.values.items():
            totals[name] = totals.get(name, 0.0) + len(batch) / n_queries * value
    del totals["kl_loss"]  # without training there is no weighted penalty
    return totals
