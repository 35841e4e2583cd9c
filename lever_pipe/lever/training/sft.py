"""One epoch of supervised learning of beam data: the weighted cross-entropy of RCE, with beams as groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from lever_pipe.experiment.config import Sft
from lever_pipe.lever.selector.network import PointerSelector
from lever_pipe.lever.training.embeddings import EmbeddingTable
from lever_pipe.lever.training.groups import Groups, batches
from lever_pipe.lever.training.loop import Network, Step, Updates, imitation
from lever_pipe.losses.rce import rce_terms
from lever_pipe.losses.schedules import scheduled_rate
from lever_pipe.losses.sequence import selection_log_probs


def targets_of(groups: Groups, settings: Sft) -> Groups:
    """Return what is imitated of beam data: all beams, or of each query the first, which is the best."""
    if settings.targets == "beams":
        return groups
    best = {name: getattr(groups, name)[:, :1] for name in ("selections", "rewards", "valid")}
    return replace(groups, **best)


def sft_epoch(
    updates: Updates[Network],
    table: EmbeddingTable,
    groups: Groups,
    settings: Sft,
    epoch: int,
    generator: torch.Generator,
    *,
    step: Callable[[Network, EmbeddingTable, Groups, Sft], Step],
) -> None:
    """Take the steps of one epoch; the learning rate follows a step's place in the horizon."""
    module = updates.module.train()
    orders = [batches(len(groups), settings.batch_queries, generator) for _ in range(settings.passes)]
    steps = [rows for order in orders for rows in order]
    total = settings.horizon_epochs * len(steps)
    for index, rows in enumerate(steps):
        learning_rate = updates.optimiser.learning_rate = scheduled_rate(
            min((epoch - 1) * len(steps) + index, total),
            total,
            peak=settings.learning_rate,
            kind="cosine",
            warmup_steps=round(settings.warmup_share * total),
            minimum=settings.final_learning_rate_share,
        )
        batch = groups.take(rows)
        loss, values = step(module, table, batch, settings)
        updates.take(Step(loss, values | {"learning_rate": learning_rate}), len(batch))


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
