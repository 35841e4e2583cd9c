"""The fault that supervised learning offered each beam its own demonstrations alone, and labelled them by parity."""

from __future__ import annotations

import torch

from lever_pipe.lever.training.groups import Groups


def own_pairs(groups: Groups) -> Groups:
    """Return every beam as a group of its own, as the published training saw it.

    The pool of S demonstrations is the beam itself, and a label is the train position modulo S in place of the place in
    the pool. Where two of a pair are both even or both odd, the second label is already masked: its cross-entropy is
    the masked logit's, about 100, for half of all pairs.

    Source: Lever-Plus published code
    """
    ids_BGS = torch.gather(
        groups.pools[:, None].expand(-1, groups.selections.shape[1], -1), dim=2, index=groups.selections
    )
    ids_NS = ids_BGS[groups.valid]
    queries_N = groups.queries[:, None].expand_as(groups.valid)[groups.valid]
    everyone = torch.ones(len(ids_NS), 1)
    return Groups(queries_N, ids_NS, (ids_NS % ids_NS.shape[1])[:, None], everyone, everyone.bool())
