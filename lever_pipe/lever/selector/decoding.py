"""Selections of a policy, greedy or sampled with noise from the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lever_pipe.base.records import Pool, Selection
from lever_pipe.base.shapes import ShapeError, require_shapes
from lever_pipe.lever.selector.embeddings import EmbeddingTable, FrozenSelector
from lever_pipe.lever.selector.network import Encoded, PointerSelector

BATCH = 256
"""Queries scored at one time. The last batch is filled up: with products of one shape, rounding is always the same."""

Decode = Callable[[PointerSelector, Encoded, int], Tensor]
"""Maps a module, its encoded batch and a number of shots to pool positions `[B, S]`; K marks an early end."""


@torch.no_grad()
def greedy(module: PointerSelector, encoded: Encoded, shots: int) -> Tensor:
    """Return the best candidate at each step, `[B, S]` pool positions; ties keep pool order.

    K instead of a position, never at the first step, ends a selection early, as soon as ending is likelier than
    continuing.
    """
    _require_enough(encoded.candidates.shape[1], shots)
    if not module.head.follows:
        return rank_pool(module.first(encoded), shots)
    n_pool = encoded.candidates.shape[1]
    return _pick(module, encoded, 1, shots, lambda logits_BGK, _: _likelier(logits_BGK, n_pool)).squeeze(1)


@torch.no_grad()
def draw(module: PointerSelector, encoded: Encoded, noise_BGSK: Tensor) -> Tensor:
    """Return G selections a query, `[B, G, S]` pool positions: at each step the largest logit + noise not yet picked.

    With standard Gumbel noise (`gumbel`) they are exact samples of the policy (Plackett-Luce, without repeats):
    P(argmax of logit + noise = k) = softmax(logit)_k over the remaining candidates. The noise has one column for each
    of the `outcomes`: one more than candidates if a selection may end, and K ends it as in `greedy`.
    """
    n_pool, outcomes = encoded.candidates.shape[1], module.outcomes(encoded)
    require_shapes(noise_BGSK=noise_BGSK, queries_BH=encoded.queries)
    _, group, shots, width = noise_BGSK.shape
    if width != outcomes:
        raise ShapeError(f"noise_BGSK must have K={outcomes} outcomes, got {list(noise_BGSK.shape)}")
    _require_enough(n_pool, shots)
    return _pick(module, encoded, group, shots, lambda logits_BGK, step: logits_BGK + noise_BGSK[:, :, step])


def gumbel(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return standard Gumbel noise of a shape, float64: minus the logarithm of an exponential variable."""
    exponential = torch.empty(shape, dtype=torch.float64).exponential_(generator=generator)
    # A sample may be exactly 0, whose logarithm is infinite.
    return -exponential.clamp(min=torch.finfo(torch.float64).tiny).log()


def _pick(
    module: PointerSelector,
    encoded: Encoded,
    group: int,
    shots: int,
    utilities: Callable[[Tensor, int], Tensor],
) -> Tensor:
    v, head = encoded.candidates, module.head
    state = module.start(encoded, group)
    logits_BGK = head.logits([state], v, may_stop=True)[:, :, 0]
    taken_BGK = torch.zeros_like(logits_BGK, dtype=torch.bool)
    # Columns after the K candidates are ends.
    ends_K = torch.arange(logits_BGK.shape[-1], device=v.device) >= v.shape[1]
    picks: list[Tensor] = []
    for step in range(shots):
        if picks and head.follows:
            state = head.after(state, picks[-1], v)
            logits_BGK = head.logits([state], v, may_stop=True)[:, :, 0]
        picks.append(utilities(logits_BGK.masked_fill(taken_BGK, -torch.inf), step).argmax(dim=-1))
        taken_BGK.scatter_(-1, picks[-1][..., None], value=True)
        # An ended selection stays ended: the end is its only remaining outcome.
        taken_BGK = torch.where(ends_K[picks[-1]][..., None], ~ends_K, taken_BGK)
    return torch.stack(picks, dim=-1)


def _likelier(logits_BGK: Tensor, n_pool: int) -> Tensor:
    """Return logits in which the end, if the head has one, is the best or the worst outcome."""
    candidates, ends = logits_BGK[..., :n_pool], logits_BGK[..., n_pool:]
    is_likelier = ends > candidates.logsumexp(dim=-1, keepdim=True)
    return torch.cat([candidates, torch.where(is_likelier, torch.inf, -torch.inf)], dim=-1)


def _require_enough(candidates: int, shots: int) -> None:
    if not 1 <= shots <= candidates:
        raise ShapeError(f"shots must be in 1..K with K={candidates} candidates, got {shots}")


def rank_pool(scores_BK: Tensor, shots: int) -> Tensor:
    """Return the greedy selections `[B, S]` as pool positions; ties keep pool order."""
    order = torch.sort(scores_BK, dim=-1, descending=True, stable=True).indices
    return order[:, :shots]


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
    """Return the selection of every pool's query, with fewer demonstrations than shots if the policy stops early."""
    frozen, selections = FrozenSelector(module, train), list[Selection]()
    for start in range(0, len(pools), BATCH):
        batch = list(pools[start : start + BATCH])
        padded = batch + batch[-1:] * (BATCH - len(batch))
        candidates = torch.tensor([pool.candidates for pool in padded])
        query = queries.vectors[torch.tensor([pool.query_id for pool in padded])]
        ranked = decode(module, frozen.encoded(module.project(query), candidates), shots).cpu()
        # K marks an early end and is not a pool position.
        most = candidates.shape[1] - 1
        ids, lengths = candidates.gather(1, ranked.clamp(max=most)).tolist(), (ranked <= most).sum(dim=1).tolist()
        selections += [
            Selection(query_id=pool.query_id, demonstrations=ids[row][: lengths[row]]) for row, pool in enumerate(batch)
        ]
    return selections
