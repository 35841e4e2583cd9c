"""A learned gate lets each pick move the query's vector (source: Lever-Plus V4-1)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lever_pipe.lever.heads.protocol import Head, HeadSettings

GATE_BIAS = 3.0
"""Where a gate starts: sigmoid(3) = 0.953 of the query's vector stays at a pick, so later picks begin near the first
one's ranking. With 4 the slope of the sigmoid, 0.018 in place of 0.045, keeps gates from learning."""


class GatedHead(Head):
    """u <- norm(g u + (1 - g) v), g = sigmoid(W [u; v] + b)."""

    def __init__(self, settings: HeadSettings) -> None:
        super().__init__(settings)
        self.gate = nn.Linear(2 * settings.width, settings.width)

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Draw the weights from N(0, 0.01^2); biases are `GATE_BIAS`."""
        nn.init.normal_(self.gate.weight, std=0.01, generator=generator)
        nn.init.constant_(self.gate.bias, GATE_BIAS)

    def moved(self, vectors_BGH: Tensor, picked_BGH: Tensor) -> Tensor:
        """Return the vectors after a pick."""
        g = self.gate(torch.cat([vectors_BGH, picked_BGH], dim=-1)).sigmoid()
        return F.normalize(g * vectors_BGH + (1 - g) * picked_BGH, dim=-1)


build = GatedHead
