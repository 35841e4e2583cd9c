"""One epoch of supervised learning of the candidates that the annotations rank first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lever_pipe.base.records import Example
from lever_pipe.experiment.config import Distil
from lever_pipe.lever.baselines import best_by_annotations
from lever_pipe.lever.selector.network import PointerSelector
from lever_pipe.lever.training.embeddings import EmbeddingTable
from lever_pipe.lever.training.groups import Groups, batches
from lever_pipe.lever.training.loop import Step, Updates, policy_entropy
from lever_pipe.losses.distillation import distillation_terms


def oracle_targets(train: Sequence[Example], groups: Groups) -> Tensor:
    """Return the distribution `[B, K]` over each pool that is uniform on its best candidates; a row of zeros if none.

    Best by the query's own annotations, as the baseline `oracle` ranks: this teacher sees what no policy sees.
    """
    best = [
        best_by_annotations(train[query], [train[i] for i in pool])
        for query, pool in zip(groups.queries.tolist(), groups.pools.tolist(), strict=True)
    ]
    marked_BK = torch.from_numpy(np.stack(best)).to(groups.queries.device, torch.float32)
    return marked_BK / marked_BK.sum(dim=1, keepdim=True).clamp(min=1)


def distil_epoch(
    updates: Updates[PointerSelector],
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
    """Return the distance of the first pick from the oracle's, and what is logged of it."""
    scores = module.train()(table.vectors[batch.queries], table.vectors[batch.pools])
    terms = distillation_terms(scores, targets_BK)
    values = {
        "entropy": float(policy_entropy(scores.detach())),
        "agreement": float(terms.agreement),
        "target_entropy": float(terms.target_entropy),
        "gradient_share": float(terms.gradient_share),
    }
    return Step(terms.total, values)
