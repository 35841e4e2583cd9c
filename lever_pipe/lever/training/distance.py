"""How far a trained policy is from the base that it starts from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lever_pipe.base.records import Pool
from lever_pipe.lever.selector.decoding import greedy
from lever_pipe.lever.selector.network import PointerSelector
from lever_pipe.lever.training.choice import BATCH
from lever_pipe.lever.training.embeddings import EmbeddingTable, FrozenSelector, scores_of
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

    The steps are those of the base's own greedy selections: what it is evaluated with, and the same for every policy
    that starts from it. Prefixes of a policy's own, or of what it was trained on, would hold each policy against
    the base at other places. As in on-policy training the end of a selection is an outcome of a head that stops, and
    no step behind it counts.
    """
    modules, found = (policy, base), list[Tensor]()
    frozen = [FrozenSelector(module, train) for module in modules]
    for part in torch.arange(len(pools)).split(BATCH):  # type: ignore[no-untyped-call]
        batch = [pools[i] for i in part.tolist()]
        candidates = torch.tensor([pool.candidates for pool in batch])
        query = queries.vectors[torch.tensor([pool.query_id for pool in batch])]
        encoded = [of.encoded(module.project(query), candidates) for of, module in zip(frozen, modules, strict=True)]
        picks = greedy(base, encoded[1], shots)[:, None]
        _, taken = ended_selections(picks, torch.full((len(batch),), shots), candidates.shape[1])
        scores = (scores_of(module, of, picks, may_stop=True) for module, of in zip(modules, encoded, strict=True))
        found.append(kl_policy_to_reference(*(step_logits(of.double(), picks) for of in scores))[taken])
    return float(torch.cat(found).mean())
