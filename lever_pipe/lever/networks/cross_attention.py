"""A query attends to its pool before it is compared with the candidates (source: Lever-Plus v3, published code)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lever_pipe.base.rowwise import filled, linear
from lever_pipe.lever.selector.network import Architecture, PointerSelector


class CrossAttention(PointerSelector):
    """One input projection for all, attention of the query over the pool, one further projection for each side.

    Dropout follows the two projections if the head ranks once, and precedes them if the head follows the picks, as
    published.
    """

    PROJECTIONS = ("input_proj", "query_proj", "cand_proj", "input_up", "input_down")

    def __init__(self, architecture: Architecture) -> None:
        super().__init__(architecture)
        a = architecture
        self.input_proj = nn.Linear(a.embedding, a.width, bias=False)
        self.query_proj = nn.Linear(a.width, a.width, bias=False)
        self.cand_proj = nn.Linear(a.width, a.width, bias=False)
        self.cross_attn_layers = nn.ModuleList(
            nn.MultiheadAttention(a.width, a.heads, dropout=a.attention_dropout, batch_first=True)
            for _ in range(a.layers)
        )
        self.attn_norms = nn.ModuleList(nn.LayerNorm(a.width) for _ in range(a.layers))
        self._adopt_head()
        self.input_up = nn.Linear(a.width, a.feed_forward) if a.feed_forward else None
        self.input_down = nn.Linear(a.feed_forward, a.width) if a.feed_forward else None

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Fill the network's weights: near-identity projections, library defaults elsewhere.

        Near-identity query and candidate projections make the untrained score a similarity; an input block starts as
        the identity.
        """
        nn.init.xavier_uniform_(self.input_proj.weight, generator=generator)
        for projection in (self.query_proj, self.cand_proj):
            noise = torch.randn(projection.weight.shape, generator=generator)
            projection.weight.copy_(torch.eye(projection.weight.shape[0]) + 0.01 * noise)
        for attention, norm in zip(self.cross_attn_layers, self.attn_norms, strict=True):
            assert isinstance(attention, nn.MultiheadAttention) and isinstance(norm, nn.LayerNorm)
            nn.init.xavier_uniform_(attention.in_proj_weight, generator=generator)
            nn.init.zeros_(attention.in_proj_bias)
            nn.init.kaiming_uniform_(attention.out_proj.weight, a=math.sqrt(5), generator=generator)
            nn.init.zeros_(attention.out_proj.bias)
            nn.init.ones_(norm.weight)
            nn.init.zeros_(norm.bias)
        if self.input_up is not None and self.input_down is not None:
            nn.init.normal_(self.input_up.weight, std=self.architecture.width**-0.5, generator=generator)
            nn.init.zeros_(self.input_up.bias)
            nn.init.zeros_(self.input_down.weight)
            nn.init.zeros_(self.input_down.bias)

    def project(self, x: Tensor) -> Tensor:
        """Return examples `[..., H]` in the space in which the network compares them."""
        h: Tensor = self.input_proj(x)
        if self.input_up is None or self.input_down is None:
            return h
        # A projected unit vector has entries of about width ** -0.5; rescaling gives the block inputs of scale 1.
        hidden = F.gelu(self.input_up(h * math.sqrt(self.architecture.width)))
        block: Tensor = self.input_down(hidden)
        return h + block

    def as_query(self, query_BH: Tensor, pool_BKH: Tensor) -> Tensor:
        """Return the unit vectors `[B, H]` of projected queries after attention over their projected pools."""
        q = query_BH[:, None]
        for attention, norm in zip(self.cross_attn_layers, self.attn_norms, strict=True):
            assert isinstance(attention, nn.MultiheadAttention)
            q = norm(attend(attention, q, pool_BKH) + q)
        return F.normalize(self._mapped(self.query_proj, q), dim=-1).squeeze(1)

    def as_candidates(self, projected: Tensor) -> Tensor:
        """Return the unit vectors `[..., H]` of projected candidates, each independent of the others."""
        return F.normalize(self._mapped(self.cand_proj, projected), dim=-1)

    def _mapped(self, projection: nn.Module, x: Tensor) -> Tensor:
        if not self.head.follows:
            return self._drop(projection(x))
        mapped: Tensor = projection(self._drop(x))
        return mapped

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.architecture.dropout, self.training)


def attend(attention: nn.MultiheadAttention, query_B1H: Tensor, candidates_BKH: Tensor) -> Tensor:
    """Return the same as `attention(query, candidates, candidates)`, `[B, 1, H]`, without projecting any candidate.

    There is one query and K candidates, so the projections of keys and values move to the query's side:
    q . (W_k c + b_k) = (W_k^T q) . c + const, and sum_k a_k (W_v c_k + b_v) = W_v (sum_k a_k c_k) + b_v sum_k a_k.
    The constant shifts all logits equally. This needs K times fewer multiplications; results are equal up to rounding.
    """
    heads, width = attention.num_heads, query_B1H.shape[-1]
    shape = (heads, width // heads, width)
    w_q, w_k, w_v = attention.in_proj_weight.chunk(3)
    b_q, _, b_v = attention.in_proj_bias.chunk(3)
    for weight in (w_q, w_k, w_v) if w_q.requires_grad else ():
        # Joining transposed gradients takes several times as long.
        weight.register_hook(Tensor.contiguous)  # type: ignore[no-untyped-call]
    q = linear(query_B1H[:, 0], w_q, b_q).view(-1, *shape[:2])
    q = _by_head("bhd,hdw->bhw", q, w_k.view(shape)) / math.sqrt(shape[1])
    weights_BhK = F.dropout((q @ candidates_BKH.transpose(1, 2)).softmax(dim=-1), attention.dropout, attention.training)
    values = _by_head("bhw,hdw->bhd", weights_BhK @ candidates_BKH, w_v.view(shape))
    values = values + b_v.view(shape[:2]) * weights_BhK.sum(dim=-1, keepdim=True)
    return linear(values.flatten(1), attention.out_proj.weight, attention.out_proj.bias)[:, None]


def _by_head(equation: str, rows: Tensor, weight: Tensor) -> Tensor:
    """Return the product of rows `[B, heads, ...]` with each head's weight; no row depends on the other rows."""
    return torch.einsum(equation, filled(rows), weight)[: len(rows)]


build = CrossAttention
