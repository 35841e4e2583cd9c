"""A recurrent state, and a scorer of one hidden layer (source: Lever-Plus V4-5, additive)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lever_pipe.lever.heads.gru import GruHead
from lever_pipe.lever.heads.protocol import HeadSettings

SCORE_GAIN = 0.1
"""Of the scoring vector before training, as published: logits begin near each other."""


class AdditiveHead(GruHead):
    """w . tanh(A h + b + C v) over the temperature (source: Bahdanau 2015)."""

    def __init__(self, settings: HeadSettings) -> None:
        super().__init__(settings)
        self.attn_Wq = nn.Linear(settings.width, settings.width)
        self.attn_Wc = nn.Linear(settings.width, settings.width, bias=False)
        self.attn_v = nn.Linear(settings.width, 1, bias=False)

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Draw the recurrent part, then the scorer from Xavier's law, without bias."""
        super().initialise(generator)
        nn.init.xavier_uniform_(self.attn_Wq.weight, generator=generator)
        nn.init.zeros_(self.attn_Wq.bias)
        nn.init.xavier_uniform_(self.attn_Wc.weight, generator=generator)
        nn.init.xavier_uniform_(self.attn_v.weight, gain=SCORE_GAIN, generator=generator)

    def scores(self, vectors_BNH: Tensor, candidates_BKH: Tensor) -> Tensor:
        """Return `[B, N, K]`; a sum in place of a product with one column keeps the bits of a row."""
        hidden_BNKH = (self.attn_Wq(vectors_BNH)[:, :, None] + self.attn_Wc(candidates_BKH)[:, None]).tanh()
        scores: Tensor = (hidden_BNKH * self.attn_v.weight[0]).sum(dim=-1) / self.temperature
        return scores


build = AdditiveHead
