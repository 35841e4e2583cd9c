"""One epoch of supervised learning of beam data: the weighted cross-entropy of RCE, with beams as groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch
from torch import nn

from lever_pipe.base.optimiser import AdamW
from lever_pipe.experiment.config import Sft
from lever_pipe.lever.selector.network import PointerSelector
from lever_pipe.lever.training.embeddings import EmbeddingTable
from lever_pipe.lever.training.groups import Groups, batches
from lever_pipe.lever.training.loop import Plan, Step, imitation
from lever_pipe.losses.learning_rates import scheduled_rate
from lever_pipe.losses.rce import rce_terms
from lever_pipe.losses.sequence import selection_log_probs

Network = TypeVar("Network", bound=nn.Module)


def targets_of(groups: Groups, settings: Sft) -> Groups:
    """Return what is imitated of beam data: all beams, or of each query the first, which is the best."""
    if settings.targets == "beams":
        return groups
    best = {name: getattr(groups, name)[:, :1] for name in ("selections", "rewards", "valid")}
    return replace(groups, **best)


def plan_sft_epoch(
    module: Network,
    optimiser: AdamW,
    table: EmbeddingTable,
    groups: Groups,
    settings: Sft,
    epoch: int,
    generator: torch.Generator,
    *,
    step: Callable[[Network, EmbeddingTable, Groups, Sft], Step],
) -> Plan:
    """Yield the batches of one epoch with their step; the learning rate follows its place in the horizon."""
    module.train()
    orders = [batches(len(groups), settings.batch_queries, generator) for _ in range(settings.passes)]
    steps = [rows for order in orders for rows in order]
    total = settings.horizon_epochs * len(steps)
    for index, rows in enumerate(steps):
        learning_rate = optimiser.learning_rate = scheduled_rate(
            min((epoch - 1) * len(steps) + index, total),
            total,
            peak=settings.learning_rate,
            kind="cosine",
            warmup_steps=round(settings.warmup_share * total),
            minimum=settings.final_learning_rate_share,
        )

        def taken(batch: Groups, lr: float = learning_rate) -> Step:
            found = step(module, table, batch, settings)
            return Step(found.loss, found.values | {"learning_rate": lr})

        yield groups.take(rows), taken


def sft_step(module: PointerSelector, table: EmbeddingTable, batch: Groups, settings: Sft) -> Step:
    """Return the cross-entropy of each pick among the candidates that are left, mean over picks and queries."""
    scores = table.scores(module, batch)
    shots = batch.selections.shape[-1]
    terms = rce_terms(
        log_probs_BG=selection_log_probs(scores, batch.selections, batch.valid) / shots,
        rewards_BG=batch.rewards,
        valid_BG=batch.valid,
        temperature=settings.temperature,
    )
    return imitation(terms, scores)
