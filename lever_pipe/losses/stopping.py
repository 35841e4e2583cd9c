"""Selections of the policy that it may end itself: which steps it took, and what their answers are worth to it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lever_pipe.base.shapes import require_shapes


class EndedSelections(NamedTuple):
    """How far selections go that end by their own outcome or at a bound."""

    lengths: Tensor
    """[B, G] int64: candidates picked, at least 0."""
    taken: Tensor
    """[B, G, S] bool: the steps that were drawn, that which ends the selection included."""


def ended_selections(selections_BGS: Tensor, most_B: Tensor, stop: int) -> EndedSelections:
    """Return the length of each selection and the steps that its log-probability sums over.

    n = min(steps before the first `stop`, most);  taken_s = s < min(n + 1, most),  s from 0

    A selection that reaches `most` ends without a further outcome, so its end costs no log-probability. What stands
    behind an end is padding: it was not drawn, and counts for nothing.

    Args:
        selections_BGS: [B, G, S] outcomes, first first (int64).
        most_B: [B] bound on the candidates of a query's selections, in 0..S.
        stop: the outcome that ends a selection; a number that does not occur where none can.

    Raises:
        ShapeError: the shapes disagree.

    Source: this project
    """
    require_shapes(("selections_BGS", "B G S", selections_BGS), ("most_B", "B", most_B))
    goes_on_BGS = (selections_BGS != stop).cumprod(dim=-1)
    lengths_BG = torch.minimum(goes_on_BGS.sum(dim=-1), most_B[:, None])
    steps_S = torch.arange(selections_BGS.shape[-1], device=selections_BGS.device)
    return EndedSelections(lengths_BG, steps_S < torch.minimum(lengths_BG + 1, most_B[:, None])[..., None])


def net_rewards(rewards_BG: Tensor, lengths_BG: Tensor, *, price: float) -> Tensor:
    """Return what answers are worth after their demonstrations are paid for, R - price n, [B, G].

    Under it a policy gradient teaches to stop where the next demonstration adds less than its price.

    Args:
        rewards_BG: [B, G] rewards of the answers with these selections.
        lengths_BG: [B, G] candidates in each.
        price: of one candidate, at least 0.

    Raises:
        ShapeError: the shapes disagree.
        ValueError: the price is negative.

    Source: this project
    """
    require_shapes(("rewards_BG", "B G", rewards_BG), ("lengths_BG", "B G", lengths_BG))
    if not price >= 0:
        raise ValueError(f"price must be at least 0, got {price}")
    return rewards_BG - price * lengths_BG.to(rewards_BG.dtype)
