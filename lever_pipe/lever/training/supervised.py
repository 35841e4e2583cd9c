"""One epoch of imitation: of rewarded selections (RCE), beams (SFT) or the oracle's best candidates (distillation)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lever_pipe.lever.selector.embeddings import EmbeddingTable
from lever_pipe.lever.selector.network import PointerSelector
from lever_pipe.lever.training.groups import Groups, batches
from lever_pipe.lever.training.loop import Step, Updates, policy_entropy
from lever_pipe.losses.rce import rce_terms, reward_ranges
from lever_pipe.losses.schedules import cosine, linear, progress_of, scheduled_rate
from lever_pipe.losses.sequence import selection_log_probs

if TYPE_CHECKING:
    from lever_pipe.experiment.rce import Rce
    from lever_pipe.experiment.sft import Sft


def rce_epoch(
    updates: Updates,
    table: EmbeddingTable,
    groups: Groups,
    settings: Rce,
    epoch: int,
    generator: torch.Generator,
) -> None:
    """Take the steps of one epoch; temperature and learning rate depend on a step's position in the horizon."""
    module = updates.module.train()
    # All batches are drawn in advance, because the schedules need the number of steps.
    steps = [rows for _ in range(settings.passes) for rows in batches(len(groups), settings.batch_queries, generator)]
    final = settings.learning_rate * settings.final_learning_rate_share
    for index, rows in enumerate(steps):
        progress = progress_of(epoch, index, len(steps), settings.horizon_epochs)
        temperature = linear(settings.temperature_start, settings.temperature_end, progress)
        learning_rate = updates.optimiser.learning_rate = cosine(settings.learning_rate, final, progress)
        batch = groups.take(rows)
        weights = reward_ranges(batch.rewards, batch.valid) if settings.weight_by_spread else None
        loss, values = imitation_step(module, table, batch, temperature, query_weights_B=weights)
        logged = values | {"temperature": temperature, "learning_rate": learning_rate}
        updates.take(Step(loss, logged), len(batch))


def imitation_step(
    module: PointerSelector,
    table: EmbeddingTable,
    batch: Groups,
    temperature: float,
    *,
    query_weights_B: Tensor | None = None,
    per_pick: bool = False,
) -> Step:
    """Return the RCE loss of a batch and its metrics; with `per_pick` in nats a pick, not a selection."""
    scores = table.scores(module, batch)
    log_probs = selection_log_probs(scores, batch.selections, batch.valid)
    terms = rce_terms(
        log_probs_BG=log_probs / batch.selections.shape[-1] if per_pick else log_probs,
        rewards_BG=batch.rewards,
        valid_BG=batch.valid,
        temperature=temperature,
        query_weights_B=query_weights_B,
    )
    values = {
        "entropy": policy_entropy(scores.detach()),
        "weights_entropy": terms.weights_entropy,
        "max_weight": terms.max_weight,
    }
    return Step(terms.total, {name: float(value) for name, value in values.items()})


def targets_of(groups: Groups, settings: Sft) -> Groups:
    """Return the imitated part of beam data: all beams, or the first (best) beam of each query."""
    if settings.targets == "beams":
        return groups
    best = {name: getattr(groups, name)[:, :1] for name in ("selections", "rewards", "valid")}
    return replace(groups, **best)


def sft_epoch(
    updates: Updates,
    table: EmbeddingTable,
    groups: Groups,
    settings: Sft,
    epoch: int,
    generator: torch.Generator,
) -> None:
    """Take the steps of one epoch; the learning rate depends on a step's position in the horizon.

    The loss is the cross-entropy of each pick among the remaining candidates, mean over picks and queries.
    """
    module = updates.module.train()
    steps = [rows for _ in range(settings.passes) for rows in batches(len(groups), settings.batch_queries, generator)]
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
        loss, values = imitation_step(module, table, batch, settings.temperature, per_pick=True)
        updates.take(Step(loss, values | {"learning_rate": learning_rate}), len(batch))
