"""Training steps of oracle distillation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lever_pipe.base.records import Example, Normalisation
from lever_pipe.experiment.distil import Distil
from lever_pipe.lever.baselines import best_by_annotations
from lever_pipe.lever.selector.embeddings import EmbeddingTable
from lever_pipe.lever.selector.network import PointerSelector
from lever_pipe.lever.training.groups import Groups, batches
from lever_pipe.lever.training.loop import Step, Updates, policy_entropy
from lever_pipe.losses.distillation import distillation_terms


def oracle_targets(train: Sequence[Example], groups: Groups, rule: Normalisation = "when_they_disagree") -> Tensor:
    """Return the distribution `[B, K]` over each pool that is uniform on its best candidates; a row of zeros if none.

    The query's own annotations determine the best, as for the baseline `oracle`: no policy sees the annotations.
    """
    best = [
        best_by_annotations(train[query], [train[i] for i in pool], rule)
        for query, pool in zip(groups.queries.tolist(), groups.pools.tolist(), strict=True)
    ]
    marked_BK = torch.from_numpy(np.stack(best)).to(groups.queries.device, torch.float32)
    # The clamp keeps rows without any best candidate at zero.
    return marked_BK / marked_BK.sum(dim=1, keepdim=True).clamp(min=1)


def distil_epoch(
    updates: Updates,
    table: EmbeddingTable,
    groups: Groups,
    targets_BK: Tensor,
    settings: Distil,
    generator: torch.Generator,
) -> None:
    """Take the steps of the shuffled passes over the queries."""
    for _ in range(settings.passes):
        for rows in batches(len(groups), settings.batch_queries, generator):
            batch = groups.take(rows)
            updates.take(distil_step(updates.module, table, batch, targets_BK=targets_BK[rows]), len(batch))


def distil_step(module: PointerSelector, table: EmbeddingTable, batch: Groups, *, targets_BK: Tensor) -> Step:
    """Return the distance of the first pick from the oracle's distribution, and its metrics."""
    scores = module.train()(table.vectors[batch.queries], table.vectors[batch.pools])
    terms = distillation_terms(scores, targets_BK)
    values = {
        "entropy": float(policy_entropy(scores.detach())),
        "agreement": float(terms.agreement),
        "target_entropy": float(terms.target_entropy),
        "gradient_share": float(terms.gradient_share),
    }
    return Step(terms.total, values)
