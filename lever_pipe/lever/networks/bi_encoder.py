"""Query and candidates mapped separately and independently (source: Lever-Plus v1, published code).

The published configuration uses `head: blend`, the width of the embeddings, temperature 0.5 and dropout 0.08.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lever_pipe.lever.selector.network import Architecture, PointerSelector


class BiEncoder(PointerSelector):
    """Two perceptrons of the same form; a query's vector does not depend on its pool."""

    PROJECTIONS = ("query_proj", "cand_proj")

    def __init__(self, architecture: Architecture) -> None:
        super().__init__(architecture)
        self.query_proj, self.cand_proj = _perceptron(architecture), _perceptron(architecture)
        self._adopt_head()

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Fill the network's weights: Xavier's distribution, biases of 0, norms as the identity."""
        for part in (*self.query_proj, *self.cand_proj):
            if isinstance(part, nn.Linear):
                nn.init.xavier_uniform_(part.weight, generator=generator)
                nn.init.zeros_(part.bias)
            elif isinstance(part, nn.LayerNorm):
                nn.init.ones_(part.weight)
                nn.init.zeros_(part.bias)

    def project(self, x: Tensor) -> Tensor:
        """Return examples `[..., D]` unchanged: the two sides share no projection."""
        return x

    def as_query(self, query_BH: Tensor, pool_BKH: Tensor) -> Tensor:
        """Return the unit vectors `[B, H]` of queries `[B, D]`; their pools are ignored."""
        del pool_BKH
        return F.normalize(self.query_proj(query_BH), dim=-1)

    def as_candidates(self, projected: Tensor) -> Tensor:
        """Return the unit vectors `[..., H]` of candidates `[..., D]`."""
        return F.normalize(self.cand_proj(projected), dim=-1)


def _perceptron(a: Architecture) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(a.embedding, a.width),
        nn.LayerNorm(a.width),
        nn.ReLU(),
        nn.Dropout(a.dropout),
        nn.Linear(a.width, a.width),
        nn.LayerNorm(a.width),
    )


build = BiEncoder
