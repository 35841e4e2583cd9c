"""One epoch of GRPO on stored selections (the published, offline objective)."""

from __future__ import annotations

import torch
from torch import Tensor

from lever_pipe.experiment.grpo import Grpo
from lever_pipe.lever.selector.embeddings import EmbeddingTable, FrozenSelector
from lever_pipe.lever.training.best import keep_best
from lever_pipe.lever.training.groups import BATCH, Groups, batches
from lever_pipe.lever.training.loop import Step, Updates, logged, policy_entropy
from lever_pipe.losses.grpo import grpo_terms
from lever_pipe.losses.kl import divergence_of_logs
from lever_pipe.losses.reduction import mean_of_group_means
from lever_pipe.losses.schedules import adapt_kl_beta
from lever_pipe.losses.sequence import outcome_log_probs, picked_log_probs


def selected_in_epoch(groups: Groups, grpo: Grpo, epoch: int) -> tuple[Groups, Tensor]:
    """Return the selections of an epoch and their advantages; the first epoch uses `top_k_first_epoch`."""
    limits = grpo.model_dump(include={"z_clamp", "advantage_std_floor", "advantage_clamp"})
    return keep_best(groups, grpo.top_k_first_epoch if epoch == 1 else grpo.top_k, **limits)


def grpo_epoch(
    updates: Updates,
    reference: FrozenSelector,
    table: EmbeddingTable,
    selected: tuple[Groups, Tensor],
    *,
    kl_beta: float,
    settings: Grpo,
    generator: torch.Generator,
) -> float:
    """Take the steps of one epoch on the result of `selected_in_epoch`; return the penalty's weight after the last.

    Like the reference, the trained policy runs without dropout: so the ratio is 1 and the penalty 0 before the first
    step. `kl_beta` is the weight at that step; with `adaptive_kl` it follows the penalty step by step.
    """
    order = torch.cat(batches(len(selected[0]), settings.batch_queries, generator))
    groups, advantages = selected[0].take(order), selected[1][order]
    # The reference is fixed, so one pass over the groups serves all steps.
    anchor = reference_log_probs(reference, groups)
    policy = updates.module.eval()
    table = table.projected_by(policy)
    for rows in groups.rows(settings.batch_queries):
        batch = groups.take(rows)
        step = grpo_step(
            table.scores(policy, batch),
            anchor[rows],
            batch,
            advantages[rows],
            kl_beta=kl_beta,
            clip_epsilon=settings.clip_epsilon,
        )
        updates.take(step, len(batch))
        if settings.adaptive_kl:
            kl_beta = adapt_kl_beta(kl_beta, step.values["kl"], **settings.adaptive_kl.model_dump())
    return kl_beta


def reference_log_probs(reference: FrozenSelector, groups: Groups) -> Tensor:
    """Return the reference's `outcome_log_probs` of all groups, [B, G, S, K]."""
    parts = [groups.take(rows) for rows in groups.rows(BATCH)]
    return torch.cat([outcome_log_probs(reference.scores(part), part.selections, part.valid) for part in parts])


def grpo_step(
    scores: Tensor,
    anchored: Tensor,
    batch: Groups,
    advantages: Tensor,
    *,
    kl_beta: float,
    clip_epsilon: float,
) -> Step:
    """Return the GRPO loss of a batch with every published metric and the exact KL(policy || reference).

    `scores` are the trained policy's (`EmbeddingTable.scores`), `anchored` `[B, G, S, K]` the `reference_log_probs`,
    `advantages` `[B, G]`.
    """
    outcomes = outcome_log_probs(scores, batch.selections, batch.valid)
    terms = grpo_terms(
        log_probs_BG=picked_log_probs(outcomes, batch.selections, batch.valid).sum(dim=-1),
        reference_log_probs_BG=picked_log_probs(anchored, batch.selections, batch.valid).sum(dim=-1),
        advantages_BG=advantages,
        valid_BG=batch.valid,
        clip_epsilon=clip_epsilon,
        kl_beta=kl_beta,
    )
    # Per step and over all K outcomes; mean over steps, selections, queries.
    exact = mean_of_group_means(divergence_of_logs(outcomes.detach(), anchored).mean(dim=-1), batch.valid)
    values = logged(terms, kl_beta, kl_exact=float(exact)) | {"entropy": float(policy_entropy(scores.detach()))}
    return Step(terms.total, values)
