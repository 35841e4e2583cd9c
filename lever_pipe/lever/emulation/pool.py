"""The fault that every evaluation query was offered the same few train items."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lever_pipe.base.records import ExampleId, Pool
from lever_pipe.lever.selector.network import Encoded, PointerSelector


def first_items(pools: Sequence[Pool], n: int) -> list[Pool]:
    """Return for each query, in place of its own pool, the first `n` items of the train split."""
    items = tuple(ExampleId(i) for i in range(n))
    return [Pool(query_id=pool.query_id, candidates=items) for pool in pools]


def decode_with_repeats(module: PointerSelector, encoded: Encoded, shots: int) -> Tensor:
    """Return what `greedy_with_repeats` makes of a static head's scores; the published networks had no other."""
    return greedy_with_repeats(module.first(encoded), shots)


def greedy_with_repeats(scores_BK: Tensor, shots: int) -> Tensor:
    """Return greedy selections `[B, S]` as pool positions, also where there are fewer candidates than shots.

    The published decoding masks what is chosen and takes the largest score. Once all are chosen, the first of the
    equal masked scores wins: two candidates give `[1, 0, 0, 0]` or `[0, 1, 0, 0]`.
    """
    left_BK = scores_BK.clone()
    picks: list[Tensor] = []
    for _ in range(shots):
        pick_B1 = left_BK.argmax(dim=-1, keepdim=True)
        left_BK.scatter_(1, pick_B1, -torch.inf)
        picks.append(pick_B1)
    return torch.cat(picks, dim=1)
