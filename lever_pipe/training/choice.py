"""What a trained policy chooses: greedy selections of many queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lever_pipe.records import Pool, Selection
from lever_pipe.selector.network import PointerSelector, rank_pool
from lever_pipe.training.embeddings import EmbeddingTable

BATCH = 256
"""Queries scored at one time."""


@torch.inference_mode()
def choose(
    module: PointerSelector,
    train: EmbeddingTable,
    queries: EmbeddingTable,
    pools: Sequence[Pool],
    shots: int,
    *,
    decode: Callable[[Tensor, int], Tensor] = rank_pool,
) -> list[Selection]:
    """Return the selection of every pool's query; `decode` turns scores `[B, K]` into pool positions `[B, S]`."""
    rows: list[Selection] = []
    for part in torch.arange(len(pools)).split(BATCH):  # type: ignore[no-untyped-call]
        batch = [pools[i] for i in part.tolist()]
        candidates = torch.tensor([pool.candidates for pool in batch])
        query = queries.vectors[torch.tensor([pool.query_id for pool in batch])]
        ranked = decode(module(query, train.vectors[candidates]).cpu(), shots)
        chosen = candidates.gather(1, ranked).tolist()
        rows += [Selection(query_id=p.query_id, demonstrations=c) for p, c in zip(batch, chosen, strict=True)]
    return rows
