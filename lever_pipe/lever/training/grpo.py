"""One epoch of GRPO on stored selections (the published, offline objective)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lever_pipe.base.records import EpochMetrics, PolicyRef
from lever_pipe.base.seeding import torch_generator
from lever_pipe.experiment.config import Grpo
from lever_pipe.experiment.stage_configs import TrainGrpoEpochConfig
from lever_pipe.lever.training.embeddings import EmbeddingTable, FrozenSelector
from lever_pipe.lever.training.epoch import EpochFiles, SelectorEpoch
from lever_pipe.lever.training.groups import BATCH, Groups, batches, keep_best
from lever_pipe.lever.training.loop import Plan, Step, policy_entropy
from lever_pipe.lever.training.policies import Policies, logged, trained_share
from lever_pipe.losses.grpo import adapt_kl_beta, grpo_terms
from lever_pipe.losses.kl import divergence_of_logs
from lever_pipe.losses.reduction import mean_of_group_means
from lever_pipe.losses.sequence import outcome_log_probs, picked_log_probs


@dataclass(slots=True)
class BetaController:
    """The weight of the penalty; it follows the controller's limits after every batch, or stays where they are None."""

    value: float
    limits: Mapping[str, float] | None

    def observe(self, penalty: float) -> None:
        """Adapt the weight to the penalty of the batch that was just taken."""
        if self.limits is not None:
            self.value = adapt_kl_beta(self.value, penalty, **self.limits)


def train_grpo(
    files: EpochFiles,
    reference: Path,
    config: TrainGrpoEpochConfig,
    policy: PolicyRef,
    *,
    device: torch.device,
) -> EpochMetrics:
    """Advance the selector by one epoch, write it, and return the epoch's mean terms under the name of `policy`.

    Raises:
        CheckpointError: `start` or `reference` has another architecture.
        RecordError: malformed groups.
        TrainingError: a loss or a gradient is not finite.
    """
    grpo = config.grpo
    epoch = SelectorEpoch(files, config, grpo, "grpo", device)
    limits = grpo.adaptive_kl.model_dump() if grpo.adaptive_kl else None
    beta = BetaController(config.kl_beta if epoch.kl_beta is None else epoch.kl_beta, limits)
    plan = plan_grpo_epoch(
        Policies(epoch.module, epoch.anchor(reference)),
        epoch.data.table,
        kept_in_epoch(epoch.data.train, grpo, config.epoch),
        beta,
        batch_queries=grpo.batch_queries,
        clip_epsilon=grpo.clip_epsilon,
        generator=torch_generator(config.seed, "grpo", config.epoch),
    )
    values = epoch.run(plan)
    values |= {"kl_beta": beta.value, "trained_share": trained_share(epoch.module)}
    return epoch.save(values, policy, kl_beta=beta.value)


def kept_in_epoch(groups: Groups, grpo: Grpo, epoch: int) -> tuple[Groups, Tensor]:
    """Return the selections that an epoch trains on and their advantages: fewer in the first one."""
    limits = grpo.model_dump(include={"z_clamp", "advantage_std_floor", "advantage_clamp"})
    return keep_best(groups, grpo.top_k_first_epoch if epoch == 1 else grpo.top_k, **limits)


def plan_grpo_epoch(
    policies: Policies,
    table: EmbeddingTable,
    kept: tuple[Groups, Tensor],
    beta: BetaController,
    *,
    batch_queries: int,
    clip_epsilon: float,
    generator: torch.Generator,
) -> Plan:
    """Yield the batches of one epoch with their step."""
    order = torch.cat(batches(len(kept[0]), batch_queries, generator))
    groups, advantages = kept[0].take(order), kept[1][order]
    anchor = reference_log_probs(policies.reference, groups)
    table = table.projected_by(policies.policy)
    for rows in groups.rows(batch_queries):

        def step(batch: Groups, rows: slice = rows) -> Step:
            taken = grpo_step(
                policies.trained(table, batch),
                anchor[rows],
                batch,
                advantages[rows],
                kl_beta=beta.value,
                clip_epsilon=clip_epsilon,
            )
            beta.observe(taken.values["kl"])
            return taken

        yield groups.take(rows), step


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
    """Return the GRPO loss of a batch with every published metric and the exact KL to the reference.

    Args:
        scores: logits of the trained policy (`EmbeddingTable.scores`).
        anchored: [B, G, S, K] `reference_log_probs`.
        batch: groups of selections.
        advantages: [B, G].
        kl_beta: weight of the penalty.
        clip_epsilon: half-width of the trust region.
    """
    outcomes = outcome_log_probs(scores, batch.selections, batch.valid)
    terms = grpo_terms(
        log_probs=picked_log_probs(outcomes, batch.selections, batch.valid).sum(dim=-1),
        reference_log_probs=picked_log_probs(anchored, batch.selections, batch.valid).sum(dim=-1),
        advantages=advantages,
        valid=batch.valid,
        clip_epsilon=clip_epsilon,
        kl_beta=kl_beta,
    )
    exact = float(exact_kl(outcomes.detach(), anchored, batch.valid))
    values = logged(terms, kl_beta, kl_exact=exact) | {"entropy": float(policy_entropy(scores.detach()))}
    return Step(terms.total, values)


def exact_kl(log_probs_BGSK: Tensor, reference_BGSK: Tensor, valid_BG: Tensor) -> Tensor:
    """Return KL(policy || reference) per step, exact over all K outcomes, mean over steps, selections, queries.

    Both are `outcome_log_probs`.
    """
    return mean_of_group_means(divergence_of_logs(log_probs_BGSK, reference_BGSK).mean(dim=-1), valid_BG)
