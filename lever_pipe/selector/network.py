"""The pointer network that ranks a pool of K candidates for a query (source: Lever-Plus v3, published code)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lever_pipe.seeding import ambient_stream
from lever_pipe.shapes import require_shapes

PROJECTIONS = ("input_proj", "query_proj", "cand_proj")


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes that fix the tensors of a selector."""

    embedding: int  # D, width of the encoder's embeddings
    width: int  # H
    layers: int
    heads: int
    dropout: float
    attention_dropout: float
    temperature: float


class PointerSelector(nn.Module):
    """A static ranking of the pool: the scores do not depend on what was chosen before.

    So greedy k shots are the first k of one ranking, and permuting the pool permutes the scores.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        a = architecture
        self.architecture = a
        self.input_proj = nn.Linear(a.embedding, a.width, bias=False)
        self.query_proj = nn.Linear(a.width, a.width, bias=False)
        self.cand_proj = nn.Linear(a.width, a.width, bias=False)
        self.cross_attn_layers = nn.ModuleList(
            nn.MultiheadAttention(a.width, a.heads, dropout=a.attention_dropout, batch_first=True)
            for _ in range(a.layers)
        )
        self.attn_norms = nn.ModuleList(nn.LayerNorm(a.width) for _ in range(a.layers))

    def forward(self, query_BD: Tensor, pool_BKD: Tensor) -> Tensor:
        """Return the logits `[B, K]` of the first pick (cosine over the temperature)."""
        require_shapes(("query", "B D", query_BD), ("pool", "B K D", pool_BKD))
        q = self.input_proj(query_BD)[:, None]
        candidates = self.input_proj(pool_BKD)
        for attention, norm in zip(self.cross_attn_layers, self.attn_norms, strict=True):
            assert isinstance(attention, nn.MultiheadAttention)
            q = norm(attend(attention, q, candidates) + q)
        u = F.normalize(self._drop(self.query_proj(q)), dim=-1)
        v = F.normalize(self._drop(self.cand_proj(candidates)), dim=-1)
        scores: Tensor = (v @ u.transpose(1, 2)).squeeze(-1) / self.architecture.temperature
        return scores

    def freeze_projections(self) -> None:
        """Leave attention and layer norm trainable only (263,680 of 525,824 parameters at D = 512)."""
        for name in PROJECTIONS:
            getattr(self, name).requires_grad_(False)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.architecture.dropout, self.training)


def attend(attention: nn.MultiheadAttention, query_B1H: Tensor, candidates_BKH: Tensor) -> Tensor:
    """Return what `attention(query, candidates, candidates)` returns, `[B, 1, H]`, without projecting any candidate.

    There is one query and K candidates, so the projections of keys and values move to the query's side:
    q . (W_k c + b_k) = (W_k^T q) . c + const, and sum_k a_k (W_v c_k + b_v) = W_v (sum_k a_k c_k) + b_v sum_k a_k.
    The constant shifts all logits alike. K times fewer multiplications, the same numbers up to rounding.
    """
    heads, width = attention.num_heads, query_B1H.shape[-1]
    shape = (heads, width // heads, width)
    w_q, w_k, w_v = attention.in_proj_weight.chunk(3)
    b_q, _, b_v = attention.in_proj_bias.chunk(3)
    q = F.linear(query_B1H[:, 0], w_q, b_q).view(-1, *shape[:2])
    q = torch.einsum("bhd,hdw->bhw", q, w_k.view(shape)) / math.sqrt(shape[1])
    weights_BhK = F.dropout((q @ candidates_BKH.transpose(1, 2)).softmax(dim=-1), attention.dropout, attention.training)
    values = torch.einsum("bhw,hdw->bhd", weights_BhK @ candidates_BKH, w_v.view(shape))
    values = values + b_v.view(shape[:2]) * weights_BhK.sum(dim=-1, keepdim=True)
    attended: Tensor = attention.out_proj(values.flatten(1))[:, None]
    return attended


def build_selector(architecture: Architecture) -> PointerSelector:
    """Return a selector whose weights mean nothing yet: `initialise` or a checkpoint fills them."""
    with ambient_stream(0, "construction"):  # the library draws weights from the global stream, which nobody may use
        return PointerSelector(architecture)


@torch.no_grad()
def initialise(module: PointerSelector, generator: torch.Generator) -> PointerSelector:
    """Fill the weights from `generator`: near-identity projections, library defaults elsewhere.

    Near-identity query and candidate projections make the untrained score a similarity.
    """
    nn.init.xavier_uniform_(module.input_proj.weight, generator=generator)
    for projection in (module.query_proj, module.cand_proj):
        noise = torch.randn(projection.weight.shape, generator=generator)
        projection.weight.copy_(torch.eye(projection.weight.shape[0]) + 0.01 * noise)
    for attention, norm in zip(module.cross_attn_layers, module.attn_norms, strict=True):
        assert isinstance(attention, nn.MultiheadAttention) and isinstance(norm, nn.LayerNorm)
        nn.init.xavier_uniform_(attention.in_proj_weight, generator=generator)
        nn.init.zeros_(attention.in_proj_bias)
        nn.init.kaiming_uniform_(attention.out_proj.weight, a=math.sqrt(5), generator=generator)
        nn.init.zeros_(attention.out_proj.bias)
        nn.init.ones_(norm.weight)
        nn.init.zeros_(norm.bias)
    return module


def rank_pool(scores_BK: Tensor, shots: int) -> Tensor:
    """Return the greedy selections `[B, S]` as pool positions; ties keep pool order."""
    order = torch.sort(scores_BK, dim=-1, descending=True, stable=True).indices
    return order[:, :shots]
