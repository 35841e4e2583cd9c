"""The divergence of two policies on their queries."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lever_pipe.base.records import Pool
from lever_pipe.lever.selector.decoding import BATCH, greedy
from lever_pipe.lever.selector.embeddings import EmbeddingTable, FrozenSelector, scores_of
from lever_pipe.lever.selector.network import PointerSelector
from lever_pipe.losses.kl import kl_policy_to_reference
from lever_pipe.losses.sequence import ended_selections, step_logits


@torch.inference_mode()
def kl_to_base(
    policy: PointerSelector,
    base: PointerSelector,
    train: EmbeddingTable,
    queries: EmbeddingTable,
    pools: Sequence[Pool],
    shots: int,
) -> float:
    """Return KL(policy || base) in nats a step, exact over all outcomes, mean over the steps of all queries.

    The steps come from the base's own greedy selections: the selections of its evaluation, and the same for every
    policy that starts from it. Prefixes of each policy's own selections, or of its training data, would compare each
    policy with the base at different steps. As in on-policy training, the end of a selection is an outcome of a head
    that stops, and no step after the end counts.
    """
    modules, divergences = (policy, base), list[Tensor]()
    frozen = [FrozenSelector(module, train) for module in modules]
    for start in range(0, len(pools), BATCH):
        batch = list(pools[start : start + BATCH])
        candidates = torch.tensor([pool.candidates for pool in batch])
        query = queries.vectors[torch.tensor([pool.query_id for pool in batch])]
        encoded = [f.encoded(module.project(query), candidates) for f, module in zip(frozen, modules, strict=True)]
        picks = greedy(base, encoded[1], shots)[:, None]
        _, taken = ended_selections(picks, torch.full((len(batch),), shots), candidates.shape[1])
        scores = (scores_of(module, e, picks, may_stop=True) for module, e in zip(modules, encoded, strict=True))
        # In float64, because small divergences are differences of nearly equal logarithms.
        divergences.append(kl_policy_to_reference(*(step_logits(logits.double(), picks) for logits in scores))[taken])
    return float(torch.cat(divergences).mean())
