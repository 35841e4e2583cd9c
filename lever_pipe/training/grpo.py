"""One epoch of GRPO on stored selections (the published, offline objective)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from lever_pipe.losses.advantages import group_advantages, group_z_scores, top_k_by_reward
from lever_pipe.losses.grpo import GrpoTerms, adapt_kl_beta, grpo_terms
from lever_pipe.losses.kl import kl_policy_to_reference
from lever_pipe.losses.reduction import mean_of_group_means
from lever_pipe.losses.sequence import selection_log_probs, step_logits
from lever_pipe.selector.network import PointerSelector
from lever_pipe.training.embeddings import EmbeddingTable
from lever_pipe.training.groups import Groups, batches
from lever_pipe.training.loop import Step, policy_entropy


@dataclass(slots=True)
class BetaController:
    """The weight of the penalty; it follows the controller's limits after every batch, or stays where they are None."""

    value: float
    limits: Mapping[str, float] | None

    def observe(self, penalty: float) -> None:
        """Adapt the weight to the penalty of the batch that was just taken."""
        if self.limits is not None:
            self.value = adapt_kl_beta(self.value, penalty, **self.limits)


class PolicyPair(Protocol):
    """Two policies that an epoch compares: the trained one and its anchor."""

    def scores(self, table: EmbeddingTable, batch: Groups) -> tuple[Tensor, Tensor]:
        """Return the logits `[B, K]` of policy and reference, the latter without gradient."""


@dataclass(frozen=True, slots=True)
class Policies:
    """The trained policy and the frozen RCE checkpoint that anchors it, both without dropout.

    So the ratio is 1 and the penalty 0 before the first update.
    """

    policy: PointerSelector
    reference: PointerSelector

    def scores(self, table: EmbeddingTable, batch: Groups) -> tuple[Tensor, Tensor]:
        """Return the logits `[B, K]` of policy and reference, the latter without gradient."""
        scores = table.scores(self.policy.eval(), batch)
        with torch.no_grad():
            anchor = table.scores(self.reference.eval(), batch)
        return scores, anchor


def keep_best(
    groups: Groups, k: int, *, z_clamp: float, advantage_std_floor: float, advantage_clamp: float
) -> tuple[Groups, Tensor]:
    """Return the k best-rewarded selections of every query and their advantages `[B, k]`."""
    z = group_z_scores(groups.rewards, groups.valid, clamp=z_clamp)
    kept, valid = top_k_by_reward(z, groups.valid, k)
    shots = groups.selections.shape[-1]
    selections = groups.selections.gather(1, kept[..., None].expand(-1, -1, shots))
    advantages = group_advantages(z.gather(1, kept), valid, std_floor=advantage_std_floor, clamp=advantage_clamp)
    rewards = groups.rewards.gather(1, kept)
    return replace(groups, selections=selections, rewards=rewards, valid=valid), advantages


def plan_grpo_epoch(
    policies: PolicyPair,
    table: EmbeddingTable,
    kept: tuple[Groups, Tensor],
    beta: BetaController,
    *,
    batch_queries: int,
    clip_epsilon: float,
    generator: torch.Generator,
) -> Iterator[tuple[Groups, Callable[[Groups], Step]]]:
    """Yield the batches of one epoch with their step."""
    groups, advantages = kept
    for rows in batches(len(groups), batch_queries, generator):

        def step(batch: Groups, chosen: Tensor = advantages[rows]) -> Step:
            taken = grpo_step(policies, table, batch, chosen, kl_beta=beta.value, clip_epsilon=clip_epsilon)
            beta.observe(taken.values["kl"])
            return taken

        yield groups.take(rows), step


def grpo_step(
    policies: PolicyPair,
    table: EmbeddingTable,
    batch: Groups,
    advantages: Tensor,
    *,
    kl_beta: float,
    clip_epsilon: float,
) -> Step:
    """Return the GRPO loss of a batch with every published metric and the exact KL to the reference."""
    scores, anchor = policies.scores(table, batch)
    terms = grpo_terms(
        log_probs=selection_log_probs(scores, batch.selections, batch.valid),
        reference_log_probs=selection_log_probs(anchor, batch.selections, batch.valid),
        advantages=advantages,
        valid=batch.valid,
        clip_epsilon=clip_epsilon,
        kl_beta=kl_beta,
    )
    exact = exact_kl(scores.detach(), anchor, batch)
    return Step(terms.total, logged(terms, kl_beta, exact, policy_entropy(scores.detach())))


def trained_share(module: PointerSelector) -> float:
    """Return which share of the parameters trains: 0.50146 with frozen projections at D = 512, H = 256."""
    sizes = [(p.numel(), p.requires_grad) for p in module.parameters()]
    return sum(n for n, trains in sizes if trains) / sum(n for n, _ in sizes)


def exact_kl(scores: Tensor, anchor: Tensor, batch: Groups) -> Tensor:
    """Return KL(policy || reference) per step, exact over all K outcomes, mean over steps, selections, queries."""
    divergence = kl_policy_to_reference(step_logits(scores, batch.selections), step_logits(anchor, batch.selections))
    return mean_of_group_means(divergence.mean(dim=-1), batch.valid)


def logged(terms: GrpoTerms, kl_beta: float, exact: Tensor, entropy: Tensor) -> dict[str, float]:
    """Return the metrics under their published names (`kl` is the k3 penalty, `kl_exact` the divergence)."""
    penalty = float(terms.penalty.detach())
    return {
        "ppo_loss": float(terms.policy.detach()),
        "kl": penalty,
        "kl_loss": kl_beta * penalty,
        "kl_exact": float(exact),
        "mean_ratio": float(terms.mean_ratio),
        "clip_fraction": float(terms.clip_fraction),
        "mean_advantage": float(terms.mean_advantage),
        "std_advantage": float(terms.std_advantage),
        "max_advantage": float(terms.max_advantage),
        "gradient_share": float(terms.gradient_share),
        "entropy": float(entropy),
    }
