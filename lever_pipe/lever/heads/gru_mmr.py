"""A recurrent state, and a learned penalty on candidates that resemble what was picked (source: Lever-Plus V4-3)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lever_pipe.lever.heads.gru import GruHead
from lever_pipe.lever.heads.protocol import HeadSettings, State


class MmrHead(GruHead):
    """logit - softplus(l) r, r the largest cosine with a pick; nothing is taken off before the first pick.

    One l serves all steps. Its effective value softplus(l) starts at the configured penalty and counts up to the range
    of the logits, 2 over the temperature, beyond which it could only outrank every score.
    """

    def __init__(self, settings: HeadSettings) -> None:
        super().__init__(settings)
        self.first_penalty = settings.penalty
        self.div_lambda = nn.Parameter(torch.empty(()))

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Draw the recurrent part, and set l to the inverse softplus of the configured penalty."""
        super().initialise(generator)
        self.div_lambda.fill_(self.first_penalty + math.log(-math.expm1(-self.first_penalty)))

    def penalty(self) -> Tensor:
        """Return the effective penalty `[]`."""
        return F.softplus(self.div_lambda).clamp(max=2 / self.temperature)

    def logits(self, states: Sequence[State], candidates_BKH: Tensor, *, may_stop: bool = False) -> Tensor:
        """Return the logits `[B, G, S, K]` of S states."""
        logits_BGSK = super().logits(states, candidates_BKH, may_stop=may_stop)
        likeness = [likeness_of(state, candidates_BKH) for state in states]
        return logits_BGSK - self.penalty() * torch.stack(likeness, dim=2)


def likeness_of(state: State, candidates_BKH: Tensor) -> Tensor:
    """Return the largest cosine of each candidate with what was picked, `[B, G, K]`; 0 before any pick."""
    if not state.picked:
        return candidates_BKH.new_zeros(*state.vectors.shape[:2], candidates_BKH.shape[1])
    cosines = [picked_BGH @ candidates_BKH.transpose(1, 2) for picked_BGH in state.picked]
    return torch.stack(cosines).amax(dim=0)


build = MmrHead
