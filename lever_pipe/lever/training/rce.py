"""One epoch of reward-weighted cross-entropy."""

from __future__ import annotations

import torch

from lever_pipe.experiment.config import Rce
from lever_pipe.lever.selector.network import PointerSelector
from lever_pipe.lever.training.embeddings import EmbeddingTable
from lever_pipe.lever.training.groups import Groups, batches
from lever_pipe.lever.training.loop import Step, Updates, imitation
from lever_pipe.losses.advantages import published_z_scores
from lever_pipe.losses.rce import rce_terms, reward_ranges
from lever_pipe.losses.schedules import cosine, linear
from lever_pipe.losses.sequence import selection_log_probs


def rce_epoch(
    updates: Updates[PointerSelector],
    table: EmbeddingTable,
    groups: Groups,
    settings: Rce,
    epoch: int,
    generator: torch.Generator,
) -> None:
    """Take the steps of one epoch; temperature and learning rate follow a step's place in the horizon."""
    module = updates.module.train()
    orders = [batches(len(groups), settings.batch_queries, generator) for _ in range(settings.passes)]
    steps = [rows for order in orders for rows in order]
    final = settings.learning_rate * settings.final_learning_rate_share
    for index, rows in enumerate(steps):
        progress = progress_of(epoch, index, len(steps), settings.horizon_epochs)
        temperature = linear(settings.temperature_start, settings.temperature_end, progress)
        learning_rate = updates.optimiser.learning_rate = cosine(settings.learning_rate, final, progress)
        batch = groups.take(rows)
        loss, values = rce_step(module, table, batch, temperature, settings)
        logged = values | {"temperature": temperature, "learning_rate": learning_rate}
        updates.take(Step(loss, logged), len(batch))


def rce_step(module: PointerSelector, table: EmbeddingTable, batch: Groups, temperature: float, settings: Rce) -> Step:
    """Return the RCE loss of a batch."""
    scores = table.scores(module, batch)
    log_probs = selection_log_probs(scores, batch.selections, batch.valid)
    rewards = (
        batch.rewards if settings.raw_reward else published_z_scores(batch.rewards, batch.valid, clamp=settings.z_clamp)
    )
    weights = reward_ranges(batch.rewards, batch.valid) if settings.weight_by_spread else None
    terms = rce_terms(
        log_probs_BG=log_probs,
        rewards_BG=rewards,
        valid_BG=batch.valid,
        temperature=temperature,
        query_weights_B=weights,
    )
    return imitation(terms, scores)


def progress_of(epoch: int, step: int, steps_per_epoch: int, horizon_epochs: int) -> float:
    """Return where a step stands in the schedule's horizon, in [0, 1]; later epochs stay at 1."""
    last = horizon_epochs * steps_per_epoch - 1
    return min(1.0, ((epoch - 1) * steps_per_epoch + step) / max(last, 1))
