"""A recurrent state, and a learned vector that decides when a selection ends (source: Lever-Plus V4-10)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from lever_pipe.lever.heads.gru import STEP_DEVIATION, GruHead
from lever_pipe.lever.heads.protocol import HeadSettings, State
from lever_pipe.losses.reduction import masked
from lever_pipe.losses.sequence import MASKED_SCORE

FIRST_LOG_ODDS = -1.0
"""Initial log-odds of ending: greedy selections take every shot, and a quarter of the samples ends at each step,
so that rewards can teach the policy when to end."""


class StopHead(GruHead):
    """P(end) = sigmoid(h . e / temperature - 1) after each pick, 0 before the first.

    As outcome K + 1 it has the logit h . e / temperature - 1 + ln sum_k exp(logit_k), k over the remaining candidates.
    As published, the vector competes with each candidate separately. Its odds then fall with the size of the pool and
    with every step that sharpens the scores, until no sample ends and nothing is learned about ending. The network
    does not attend to the vector. Stored selections contain no information about ending, so only the policy's own
    samples train it.
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
        """Return the logits `[B, G, S, K]` of S states; with `may_stop` also the end's, `[B, G, S, K + 1]`."""
        logits_BGSK = super().logits(states, candidates_BKH)
        if not may_stop:
            return logits_BGSK
        ends_BGS1 = super().logits(states, self.stop_token.expand(len(candidates_BKH), 1, -1)) + FIRST_LOG_ODDS
        ends_BGS1 = ends_BGS1 + masked(logits_BGSK, unpicked(states, logits_BGSK), MASKED_SCORE).logsumexp(-1, True)
        has_begun_S1 = torch.tensor([[bool(state.picks)] for state in states], device=logits_BGSK.device)
        return torch.cat([logits_BGSK, masked(ends_BGS1, has_begun_S1.expand_as(ends_BGS1), MASKED_SCORE)], dim=-1)


def unpicked(states: Sequence[State], logits_BGSK: Tensor) -> Tensor:
    """Return the mask of candidates that are not picked yet, bool `[B, G, S, K]`."""
    n_pool, masks = logits_BGSK.shape[-1], [torch.ones_like(logits_BGSK[:, :, 0], dtype=torch.bool) for _ in states]
    for state, left_BGK in zip(states, masks, strict=True):
        for picks_BG in state.picks:
            # One class more than candidates, because a pick may be the end (K).
            left_BGK &= one_hot(picks_BG, n_pool + 1)[..., :n_pool] == 0
    return torch.stack(masks, dim=2)


build = StopHead
