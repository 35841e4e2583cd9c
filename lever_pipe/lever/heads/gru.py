"""A recurrent cell that updates the query's vector with each pick (source: Lever-Plus V4-2)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lever_pipe.base.rowwise import linear
from lever_pipe.lever.heads.protocol import Head, HeadSettings, State

STEP_DEVIATION = 0.02
"""Standard deviation of step embeddings before training, as published."""


class GruHead(Head):
    """h <- norm(GRUCell(v, h)).

    With step embeddings the t-th pick is scored against norm(h + e_t); they do not enter the state itself.
    """

    def __init__(self, settings: HeadSettings) -> None:
        super().__init__(settings)
        self.decoder_gru = nn.GRUCell(settings.width, settings.width)
        self.step_emb = nn.Embedding(settings.steps, settings.width) if settings.steps else None

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Draw the cell's tensors from the library's U(-H^-0.5, H^-0.5), and step embeddings around 0."""
        bound = self.decoder_gru.hidden_size**-0.5
        for tensor in self.decoder_gru.parameters():
            nn.init.uniform_(tensor, -bound, bound, generator=generator)
        if self.step_emb is not None:
            nn.init.normal_(self.step_emb.weight, std=STEP_DEVIATION, generator=generator)

    def first(self, queries_BH: Tensor, candidates_BKH: Tensor) -> Tensor:
        """Return the logits `[B, K]` of the first pick."""
        return self.logits([self.start(queries_BH[:, None])], candidates_BKH)[:, 0, 0]

    def moved(self, vectors_BGH: Tensor, picked_BGH: Tensor) -> Tensor:
        """Return the vectors after a pick, by the cell's formula; its products do not depend on the batch."""
        cell = self.decoder_gru
        into = linear(picked_BGH, cell.weight_ih, cell.bias_ih).chunk(3, dim=-1)
        onto = linear(vectors_BGH, cell.weight_hh, cell.bias_hh).chunk(3, dim=-1)
        reset, keep = ((x + h).sigmoid() for x, h in zip(into[:2], onto[:2], strict=True))
        fresh = (into[2] + reset * onto[2]).tanh()
        return F.normalize(fresh + keep * (vectors_BGH - fresh), dim=-1)

    def seen(self, state: State) -> Tensor:
        """Return the vectors that candidates are scored against."""
        if self.step_emb is None:
            return state.vectors
        return F.normalize(state.vectors + self.step_emb.weight[len(state.picks)], dim=-1)


build = GruHead
