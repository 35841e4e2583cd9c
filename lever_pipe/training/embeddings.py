"""The embeddings as what the selector reads, and the architecture that fits them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from lever_pipe import storage
from lever_pipe.config import Selector
from lever_pipe.selector.features import INPUTS
from lever_pipe.selector.network import Architecture, PointerSelector

if TYPE_CHECKING:
    from lever_pipe.training.groups import Groups


class EmbeddingTable(NamedTuple):
    """What the selector sees of all examples of a split, `[N, D]`."""

    vectors: Tensor

    def scores(self, module: PointerSelector, groups: Groups) -> Tensor:
        """Return the selector's logits for a batch of groups: `[B, K]`, or `[B, G, S, K]` if they follow the picks."""
        query, pool = self.vectors[groups.queries], self.vectors[groups.pools]
        scores: Tensor = module(query, pool) if module.gate is None else module.along(query, pool, groups.selections)
        return scores


def read_table(embeddings: Path, split: str, device: torch.device, *, inputs: str = "fused") -> EmbeddingTable:
    """Return what the selector sees of a split, `[N, D]`; `inputs` is a key of `selector.features.INPUTS`.

    Raises:
        RecordError: a missing or damaged file.
    """
    arrays = storage.read_arrays(embeddings)
    seen = INPUTS[inputs](arrays[f"{split}_image"], arrays[f"{split}_question"])
    return EmbeddingTable(torch.from_numpy(seen).to(device))


def architecture_of(selector: Selector, table: EmbeddingTable) -> Architecture:
    """Return the architecture that fits the embeddings."""
    return Architecture(embedding=table.vectors.shape[1], **selector.model_dump(exclude={"inputs"}))
