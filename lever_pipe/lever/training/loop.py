"""Optimiser steps and metrics that all epochs of the selector share."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from lever_pipe.base.optimiser import AdamW, require_finite
from lever_pipe.lever.selector.embeddings import EmbeddingTable, FrozenSelector
from lever_pipe.lever.selector.network import PointerSelector
from lever_pipe.lever.training.groups import BATCH, Groups
from lever_pipe.losses.rce import rce_terms
from lever_pipe.losses.sequence import first_step_logits, selection_log_probs

if TYPE_CHECKING:
    from lever_pipe.losses.surrogate import PolicyTerms


class Step(NamedTuple):
    """The loss of one batch and its metrics (means over the batch's queries)."""

    loss: Tensor
    values: dict[str, float]


class Updates:
    """The optimiser steps of an epoch, and the means of their metrics over its queries.

    Parameters without a gradient do not change; a gradient longer than `max_gradient_norm` is scaled down to it.
    """

    def __init__(self, module: PointerSelector, optimiser: AdamW, *, max_gradient_norm: float) -> None:
        self.module, self.optimiser = module, optimiser
        self._max_gradient_norm = max_gradient_norm
        self._trainable = [p for p in module.parameters() if p.requires_grad]
        self._totals: dict[str, float] = {}
        self._n_queries = 0

    def take(self, step: Step, n_queries: int) -> None:
        """Take one optimiser step on the loss of a batch of `n_queries`."""
        for parameter in self._trainable:
            parameter.grad = None
        step.loss.backward()  # type: ignore[no-untyped-call]
        _complete(self.module.head)
        norm = nn.utils.clip_grad_norm_(self._trainable, self._max_gradient_norm)
        taken = {"loss": float(step.loss.detach()), "grad_norm": float(norm)}
        location = f"after {self._n_queries} queries of the epoch: "
        # Checked before the step, so that a NaN never reaches the weights.
        require_finite(taken, where=location, do="Lower the learning rate of the preset, or raise its temperature.")
        self.optimiser.step()
        for name, value in (step.values | taken).items():
            self._totals[name] = self._totals.get(name, 0.0) + value * n_queries
        self._n_queries += n_queries

    def means(self) -> dict[str, float]:
        """Return the means of all metrics of the steps so far, weighted by queries."""
        return {name: total / self._n_queries for name, total in self._totals.items()}


def _complete(head: nn.Module) -> None:
    """Set missing gradients of the head to 0: one-shot selections do not use all of it; elsewhere they are errors."""
    for parameter in head.parameters():
        if parameter.grad is None and parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)


def policy_entropy(scores: Tensor) -> Tensor:
    """Return the entropy of the first pick in nats, mean over queries; ln K is uniform.

    `scores` are `[B, K]`, or `[B, G, S, K]` where they follow the picks.
    """
    # `entr` is 0 at p = 0, where p ln p would be NaN.
    entropies_B: Tensor = torch.special.entr(first_step_logits(scores).softmax(dim=-1)).sum(dim=-1)
    return entropies_B.mean()


def trained_share(module: PointerSelector) -> float:
    """Return the trainable share of the parameters: 0.50146 with frozen projections at D = 512, H = 256."""
    sizes = [(p.numel(), p.requires_grad) for p in module.parameters()]
    return sum(n for n, trains in sizes if trains) / sum(n for n, _ in sizes)


def logged(terms: PolicyTerms, kl_beta: float, **more: float) -> dict[str, float]:
    """Return the metrics under their published names, with `more` after the penalty.

    `kl` is the penalised divergence: offline the k3 over stored selections, on-policy the divergence of whole
    selections in the form of `kl_form`; `kl_exact` is the divergence per step.
    """
    penalty = float(terms.penalty.detach())
    return {
        "ppo_loss": float(terms.policy.detach()),
        "kl": penalty,
        "kl_loss": kl_beta * penalty,
        **more,
        "mean_ratio": float(terms.mean_ratio),
        "clip_fraction": float(terms.clip_fraction),
        "mean_advantage": float(terms.mean_advantage),
        "std_advantage": float(terms.std_advantage),
        "max_advantage": float(terms.max_advantage),
        "gradient_share": float(terms.gradient_share),
    }


@torch.no_grad()
def validation_loss(
    module: PointerSelector, table: EmbeddingTable, groups: Groups, *, temperature: float = 1.0
) -> float:
    """Return the published validation loss of both phases: RCE on held-out queries, raw reward, temperature 1.

    Supervised learning has its own temperature and groups, in the same unit, nats a selection. A uniform policy over
    64 candidates and two picks has ln 64 + ln 63.
    """
    frozen, total = FrozenSelector(module, table), 0.0
    for rows in groups.rows(BATCH):
        part = groups.take(rows)
        log_probs = selection_log_probs(frozen.scores(part), part.selections, part.valid)
        terms = rce_terms(log_probs_BG=log_probs, rewards_BG=part.rewards, valid_BG=part.valid, temperature=temperature)
        total += float(terms.total) * len(part)
    return total / len(groups)
