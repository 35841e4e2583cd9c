"""The pointer network that ranks a pool of K candidates for a query (source: Lever-Plus v3, published code)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lever_pipe.base.rowwise import linear, rowwise
from lever_pipe.base.seeding import ambient_stream
from lever_pipe.base.shapes import require_shapes

Head = Literal["static", "gated"]
PROJECTIONS = ("input_proj", "query_proj", "cand_proj")

GATE_BIAS = 3.0
"""Where a gate starts: sigmoid(3) = 0.953 of the query's vector stays at a pick, so later picks begin near the first
one's ranking. With 4 the slope of the sigmoid, 0.018 in place of 0.045, keeps gates from learning."""


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
    head: Head = "static"
    feed_forward: int = 0  # hidden width of the input block; 0 for none


class Encoded(NamedTuple):
    """A batch as unit vectors whose products are cosines."""

    queries: Tensor  # [B, H]
    candidates: Tensor  # [B, K, H]


class PointerSelector(nn.Module):
    """Scores of a pool, with one of two heads.

    * `static`: one ranking; the scores do not depend on what was chosen before.
    * `gated`: each pick moves the query's vector through a learned gate (source: Lever-Plus V4-1), so that the scores
      of later picks depend on the earlier ones.

    With either head greedy k shots are the first k of more shots, and permuting the pool permutes the picks.
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
        self.gate = nn.Linear(2 * a.width, a.width) if a.head == "gated" else None
        self.input_up = nn.Linear(a.width, a.feed_forward) if a.feed_forward else None
        self.input_down = nn.Linear(a.feed_forward, a.width) if a.feed_forward else None

    def forward(self, query_BD: Tensor, pool_BKD: Tensor) -> Tensor:
        """Return the logits `[B, K]` of the first pick (cosine over the temperature)."""
        return self.first(self.encode(query_BD, pool_BKD))

    def first(self, encoded: Encoded) -> Tensor:
        """Return the logits `[B, K]` of the first pick."""
        u, v = encoded
        scores: Tensor = (v @ u[:, None].transpose(1, 2)).squeeze(-1) / self.architecture.temperature
        return scores

    def encode(self, query_BD: Tensor, pool_BKD: Tensor) -> Encoded:
        """Return the vectors of the first pick; dropout, if the module trains, follows the head's publication."""
        require_shapes(("query", "B D", query_BD), ("pool", "B K D", pool_BKD))
        query_BH, pool_BKH = self.project(query_BD), self.project(pool_BKD)
        return Encoded(self.as_query(query_BH, pool_BKH), self.as_candidates(pool_BKH))

    def as_query(self, query_BH: Tensor, pool_BKH: Tensor) -> Tensor:
        """Return the unit vectors `[B, H]` of projected queries that have looked at their projected pools."""
        q = query_BH[:, None]
        for attention, norm in zip(self.cross_attn_layers, self.attn_norms, strict=True):
            assert isinstance(attention, nn.MultiheadAttention)
            q = norm(attend(attention, q, pool_BKH) + q)
        return F.normalize(self._mapped(self.query_proj, q), dim=-1).squeeze(1)

    def as_candidates(self, projected: Tensor) -> Tensor:
        """Return the unit vectors `[..., H]` of projected candidates; each depends on itself alone."""
        return F.normalize(self._mapped(self.cand_proj, projected), dim=-1)

    def after(self, queries_GH: Tensor, chosen_GH: Tensor) -> Tensor:
        """Return the unit vectors `[..., H]` of queries after a pick: `norm(g u + (1 - g) v)`, g from the gate.

        With a static head they stay what they were.
        """
        if self.gate is None:
            return queries_GH
        g = self.gate(torch.cat([queries_GH, chosen_GH], dim=-1)).sigmoid()
        return F.normalize(g * queries_GH + (1 - g) * chosen_GH, dim=-1)

    def following(self, encoded: Encoded, selections_BGS: Tensor) -> Tensor:
        """Return the logits `[B, G, S, K]` of each step of given selections, nothing masked yet.

        `selections_BGS` are pool positions in 0..K-1. For a static head all `[K]` of a query are alike, and `first`
        says the same in less.
        """
        u, v = encoded
        require_shapes(("candidates", "B K H", v), ("selections", "B G S", selections_BGS))
        states = [u[:, None].expand(-1, selections_BGS.shape[1], -1)]
        for picks_BG in selections_BGS.unbind(dim=-1)[:-1]:
            states.append(self.after(states[-1], rows_at(v, picks_BG)))
        return self.logits(torch.stack(states, dim=2).flatten(1, 2), v).reshape(*selections_BGS.shape, -1)

    def logits(self, queries_BGH: Tensor, candidates_BKH: Tensor) -> Tensor:
        """Return `[B, G, K]`, cosines over the temperature."""
        return queries_BGH @ candidates_BKH.transpose(1, 2) / self.architecture.temperature

    def freeze_projections(self) -> None:
        """Leave attention, layer norm and gate trainable only (static: 263,680 of 525,824 parameters at D = 512)."""
        for name in (*PROJECTIONS, "input_up", "input_down"):
            module = getattr(self, name)
            if module is not None:
                module.requires_grad_(False)

    def project(self, x: Tensor) -> Tensor:
        """Return examples `[..., H]` as the network compares them: query and candidate alike, each by itself."""
        h: Tensor = self.input_proj(x)
        if self.input_up is None or self.input_down is None:
            return h
        # A projected unit vector has entries of about width ** -0.5; the block sees them at scale 1.
        hidden = F.gelu(self.input_up(h * math.sqrt(self.architecture.width)))
        block: Tensor = self.input_down(hidden)
        return h + block

    def _mapped(self, projection: nn.Module, x: Tensor) -> Tensor:
        """Return a projection with dropout, which the static head has behind it and the gated one before."""
        if self.gate is None:
            return self._drop(projection(x))
        mapped: Tensor = projection(self._drop(x))
        return mapped

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
    for weight in (w_q, w_k, w_v) if w_q.requires_grad else ():
        # Gradients that lie transposed take several times as long to be joined.
        weight.register_hook(Tensor.contiguous)  # type: ignore[no-untyped-call]
    q = linear(query_B1H[:, 0], w_q, b_q).view(-1, *shape[:2])
    q = torch.einsum("bhd,hdw->bhw", q, w_k.view(shape)) / math.sqrt(shape[1])
    weights_BhK = F.dropout((q @ candidates_BKH.transpose(1, 2)).softmax(dim=-1), attention.dropout, attention.training)
    values = torch.einsum("bhw,hdw->bhd", weights_BhK @ candidates_BKH, w_v.view(shape))
    values = values + b_v.view(shape[:2]) * weights_BhK.sum(dim=-1, keepdim=True)
    return linear(values.flatten(1), attention.out_proj.weight, attention.out_proj.bias)[:, None]


def rows_at(vectors_BKH: Tensor, positions_BG: Tensor) -> Tensor:
    """Return `[B, G, H]`, the vectors at pool positions."""
    return vectors_BKH.gather(1, positions_BG[..., None].expand(-1, -1, vectors_BKH.shape[-1]))


def build_selector(architecture: Architecture) -> PointerSelector:
    """Return a selector whose weights mean nothing yet: `initialise` or a checkpoint fills them."""
    with ambient_stream(0, "construction"):  # the library draws weights from the global stream, which nobody may use
        return rowwise(PointerSelector(architecture))


@torch.no_grad()
def initialise(module: PointerSelector, generator: torch.Generator) -> PointerSelector:
    """Fill the weights from `generator`: near-identity projections, library defaults elsewhere.

    Near-identity query and candidate projections make the untrained score a similarity; an input block begins as the
    identity. A gate is drawn last, so that all other weights are those of the static head: N(0, 0.01^2) around zero,
    biases `GATE_BIAS`.
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
    if module.input_up is not None and module.input_down is not None:
        nn.init.normal_(module.input_up.weight, std=module.architecture.width**-0.5, generator=generator)
        nn.init.zeros_(module.input_up.bias)
        nn.init.zeros_(module.input_down.weight)
        nn.init.zeros_(module.input_down.bias)
    if module.gate is not None:
        nn.init.normal_(module.gate.weight, std=0.01, generator=generator)
        nn.init.constant_(module.gate.bias, GATE_BIAS)
    return module


def rank_pool(scores_BK: Tensor, shots: int) -> Tensor:
    """Return the greedy selections `[B, S]` as pool positions; ties keep pool order."""
    order = torch.sort(scores_BK, dim=-1, descending=True, stable=True).indices
    return order[:, :shots]
