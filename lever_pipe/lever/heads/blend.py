"""A head that mixes each pick into the query's vector by one learned weight (source: Lever-Plus v1, bi-encoder)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lever_pipe.lever.heads.protocol import Head, HeadSettings

FIRST_WEIGHT = 0.6
"""Published initial value of w: sigmoid(0.6) = 0.646 of the query's vector is kept at a pick."""


class BlendHead(Head):
    """u <- norm(a u + (1 - a) v), a = sigmoid(w), one w for all steps and queries."""

    def __init__(self, settings: HeadSettings) -> None:
        super().__init__(settings)
        self.query_update_weight = nn.Parameter(torch.empty(()))

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Set w to `FIRST_WEIGHT`, without random numbers."""
        del generator
        self.query_update_weight.fill_(FIRST_WEIGHT)

    def moved(self, vectors_BGH: Tensor, picked_BGH: Tensor) -> Tensor:
        """Return the vectors after a pick."""
        a = self.query_update_weight.sigmoid()
        return F.normalize(a * vectors_BGH + (1 - a) * picked_BGH, dim=-1)


build = BlendHead
