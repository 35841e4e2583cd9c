"""What a trained policy chooses: greedy selections of many queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lever_pipe.base.records import Pool, Selection
from lever_pipe.lever.selector.decoding import greedy
from lever_pipe.lever.selector.network import Encoded, PointerSelector
from lever_pipe.lever.training.embeddings import EmbeddingTable, FrozenSelector

BATCH = 256
"""Queries scored at one time. The last batch is filled up: products of one shape round a query alike in any company."""

Decode = Callable[[PointerSelector, Encoded, int], Tensor]
"""Turns a module, what it has encoded, and shots into pool positions `[B, S]`; K ends a selection before."""


@torch.inference_mode()
def choose(
    module: PointerSelector,
    train: EmbeddingTable,
    queries: EmbeddingTable,
    pools: Sequence[Pool],
    shots: int,
    *,
    decode: Decode = greedy,
) -> list[Selection]:
    """Return the selection of every pool's query, of fewer demonstrations than shots where the policy stops before."""
    frozen, rows = FrozenSelector(module, train), list[Selection]()
    for part in torch.arange(len(pools)).split(BATCH):  # type: ignore[no-untyped-call]
        batch = [pools[i] for i in part.tolist()]
        filled = batch + batch[-1:] * (BATCH - len(batch))
        candidates = torch.tensor([pool.candidates for pool in filled])
        query = queries.vectors[torch.tensor([pool.query_id for pool in filled])]
        ranked = decode(module, frozen.encoded(module.project(query), candidates), shots).cpu()
        most = candidates.shape[1] - 1
        chosen, lengths = candidates.gather(1, ranked.clamp(max=most)).tolist(), (ranked <= most).sum(dim=1).tolist()
        rows += [
            Selection(query_id=pool.query_id, demonstrations=chosen[row][: lengths[row]])
            for row, pool in enumerate(batch)
        ]
    return rows
