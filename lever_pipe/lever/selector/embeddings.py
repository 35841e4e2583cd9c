"""Inputs of the selector, and its precomputed projections of single examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding

from lever_pipe.base import storage
from lever_pipe.lever.selector.network import Encoded, PointerSelector

if TYPE_CHECKING:
    from lever_pipe.lever.training.groups import Groups

BATCH = 256
"""Queries at one time outside training. A policy that is decoded gets batches of this size only, the last one filled
up: with products of one shape, rounding is always the same."""


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the rows of `[N, D]` scaled to length 1."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(length, 1e-12), dtype=np.float32)


def fuse(image_ND: NDArray[np.float32], question_ND: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return `norm(mean(norm(image), norm(question)))`, `[N, D]`; answers never enter."""
    return unit((unit(image_ND) + unit(question_ND)) / np.float32(2))


def side_by_side(image_ND: NDArray[np.float32], question_ND: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return `[norm(image), norm(question)] / sqrt(2)`, `[N, 2 D]`: a network can distinguish the two."""
    parts = np.concatenate([unit(image_ND), unit(question_ND)], axis=-1)
    return np.asarray(parts / np.sqrt(np.float32(2)), dtype=np.float32)


INPUTS: Mapping[str, Callable[[NDArray[np.float32], NDArray[np.float32]], NDArray[np.float32]]] = {
    "fused": fuse,
    "parts": side_by_side,
}
"""Functions by `selector.inputs`."""


class EmbeddingTable(NamedTuple):
    """The selector's input vectors for all examples of a split, `[N, D]`."""

    vectors: Tensor
    projected: Encoded | None = None
    """Projections of each example by frozen layers, as query and as candidate, `[N, H]`."""

    @property
    def width(self) -> int:
        """Return D."""
        return self.vectors.shape[1]

    def projected_by(self, module: PointerSelector) -> EmbeddingTable:
        """Return the table with a module's projections of each example, if no training changes them.

        On a CPU the module's logits stay bitwise equal; on a GPU, rounding depends on the size of a matrix product.
        """
        module.eval()
        # Trainable projections change with every step, so they cannot be stored.
        if torch.is_grad_enabled() and module.as_candidates(module.project(self.vectors[:1])).requires_grad:
            return self
        projected_NH = module.project(self.vectors)
        return self._replace(projected=Encoded(projected_NH, module.as_candidates(projected_NH)))

    def scores(self, module: PointerSelector, groups: Groups, *, may_stop: bool = False) -> Tensor:
        """Return the selector's logits for a batch of groups (`scores_of`)."""
        return scores_of(module, self.encoded(module, groups), groups.selections, may_stop=may_stop)

    def encoded(self, module: PointerSelector, groups: Groups) -> Encoded:
        """Return the queries and pools of a batch in the space in which the selector compares them.

        Pools overlap: without dropout each example of a batch is projected once, however often it occurs.
        """
        if self.projected is not None:
            return self.among(module, self.projected.queries[groups.queries], groups.pools)
        # With dropout each occurrence of an example needs its own noise.
        if _is_noisy(module):
            return module.encode(self.vectors[groups.queries], self.vectors[groups.pools])
        met = torch.cat([groups.queries[:, None], groups.pools], dim=1)
        distinct, rows = torch.unique(met, return_inverse=True)
        projected = module.project(self.vectors[distinct])
        query_BH, pool_BKH = embedding(rows[:, 0], projected), embedding(rows[:, 1:], projected)
        candidates_BKH = embedding(rows[:, 1:], module.as_candidates(projected))
        return Encoded(module.as_query(query_BH, pool_BKH), candidates_BKH)

    def among(self, module: PointerSelector, query_BH: Tensor, pools_BK: Tensor) -> Encoded:
        """Return projected queries and pools, rows of a table `projected_by` the module, in its comparison space."""
        assert self.projected is not None
        pool_BKH = embedding(pools_BK, self.projected.queries)
        encoded_BH = module.as_query(query_BH, pool_BKH)  # before the candidates: the order in which dropout draws
        if _is_noisy(module):
            return Encoded(encoded_BH, module.as_candidates(pool_BKH))
        return Encoded(encoded_BH, embedding(pools_BK, self.projected.candidates))


class FrozenSelector:
    """A selector that does not change: its projections of single examples are computed once for a whole table.

    It runs without dropout and without gradients. On a CPU its logits equal `EmbeddingTable.scores` bitwise;
    on a GPU, rounding depends on the size of a matrix product.
    """

    @torch.no_grad()
    def __init__(self, module: PointerSelector, table: EmbeddingTable) -> None:
        self._module, self._table = module.eval(), table.projected_by(module)

    @torch.no_grad()
    def scores(self, groups: Groups, *, may_stop: bool = False) -> Tensor:
        """Return the logits for a batch of groups, as `EmbeddingTable.scores`."""
        return self._table.scores(self._module, groups, may_stop=may_stop)

    @torch.no_grad()
    def encoded(self, query_BH: Tensor, pools_BK: Tensor) -> Encoded:
        """Return projected queries and pools, rows of the table, in the space in which the selector compares them."""
        return self._table.among(self._module, query_BH, pools_BK)


def _is_noisy(module: PointerSelector) -> bool:
    return module.training and bool(module.architecture.dropout)


def scores_of(module: PointerSelector, encoded: Encoded, selections_BGS: Tensor, *, may_stop: bool = False) -> Tensor:
    """Return the logits of selections of an encoded batch: `[B, K]`, or `[B, G, S, K]` if they follow the picks.

    Stored selections all have one configured length: without `may_stop` they are scored under a policy that does not
    end. Selections that a policy sampled may have ended early; with `may_stop` a head that stops has one more column.
    """
    if not module.head.follows:
        return module.first(encoded)
    return module.following(encoded, selections_BGS, may_stop=may_stop)


def read_table(embeddings: Path, device: torch.device, *, inputs: str = "fused") -> EmbeddingTable:
    """Return the selector's inputs of a split, `[N, D]`; `inputs` is a key of `INPUTS`."""
    arrays = storage.read_embeddings(embeddings)
    vectors = INPUTS[inputs](arrays["image"], arrays["question"])
    return EmbeddingTable(torch.from_numpy(vectors).to(device))
