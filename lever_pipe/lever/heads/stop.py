"""A recurrent state, and a learned vector that ends the selection where it outscores all candidates (source: V4-10)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lever_pipe.lever.heads.gru import STEP_DEVIATION, GruHead
from lever_pipe.lever.heads.protocol import Head, HeadSettings, State
from lever_pipe.losses.reduction import masked
from lever_pipe.losses.sequence import MASKED_SCORE


class StopHead(GruHead):
    """STOP is scored as candidate K + 1 is, and out of question before the first pick.

    The network does not look at it. Its vector is not scaled to length 1: with a short one no selection ends early.
    Stored selections say nothing about where to stop, so it is trained by what the policy draws itself.
    """

    stops = True

    def __init__(self, settings: HeadSettings) -> None:
        super().__init__(settings)
        self.stop_token = nn.Parameter(torch.empty(1, settings.width))

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Draw the recurrent part, then the vector around 0."""
        super().initialise(generator)
        nn.init.normal_(self.stop_token, std=STEP_DEVIATION, generator=generator)

    def logits(self, states: Sequence[State], candidates_BKH: Tensor, *, may_stop: bool = False) -> Tensor:
        """Return the logits `[B, G, S, K]` of S states, with STOP's `[B, G, S, K + 1]`."""
        if not may_stop:
            return super().logits(states, candidates_BKH)
        logits_BGSO = super().logits(states, self._with_stop(candidates_BKH))
        offered_SO = torch.ones(logits_BGSO.shape[2:], dtype=torch.bool, device=logits_BGSO.device)
        offered_SO[:, -1] = torch.tensor([bool(state.picked) for state in states])
        return masked(logits_BGSO, offered_SO.expand_as(logits_BGSO), MASKED_SCORE)

    def vectors_at(self, picks_BG: Tensor, candidates_BKH: Tensor) -> Tensor:
        """Return what stands at picks, `[B, G, H]`, STOP's vector at K."""
        return super().vectors_at(picks_BG, self._with_stop(candidates_BKH))

    def _with_stop(self, candidates_BKH: Tensor) -> Tensor:
        return torch.cat([candidates_BKH, self.stop_token.expand(len(candidates_BKH), 1, -1)], dim=1)


def build(settings: HeadSettings) -> Head:
    """Return the head."""
    return StopHead(settings)
