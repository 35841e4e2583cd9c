"""A recurrent state, and a scorer that maps it first (source: Lever-Plus V4-5, bilinear)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lever_pipe.lever.heads.gru import GruHead
from lever_pipe.lever.heads.protocol import HeadSettings


class BilinearHead(GruHead):
    """(W h) . v over the temperature; W starts near the identity, where the scores are those of `gru`."""

    def __init__(self, settings: HeadSettings) -> None:
        super().__init__(settings)
        self.bilinear = nn.Linear(settings.width, settings.width, bias=False)

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Draw the recurrent part, then W around the identity with deviation 0.01."""
        super().initialise(generator)
        nn.init.normal_(self.bilinear.weight, std=0.01, generator=generator)
        self.bilinear.weight.add_(torch.eye(len(self.bilinear.weight)))

    def scores(self, vectors_BNH: Tensor, candidates_BKH: Tensor) -> Tensor:
        """Return `[B, N, K]`."""
        return super().scores(self.bilinear(vectors_BNH), candidates_BKH)


build = BilinearHead
