"""The embeddings as what the selector reads, and the architecture that fits them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lever_pipe import storage
from lever_pipe.config import Selector
from lever_pipe.selector.features import fuse
from lever_pipe.selector.network import Architecture, PointerSelector
from lever_pipe.training.groups import Groups


class EmbeddingTable(NamedTuple):
    """The fused embeddings `[N, D]` of all examples of a split."""

    vectors: Tensor

    def scores(self, module: PointerSelector, groups: Groups) -> Tensor:
        """Return the selector's logits `[B, K]` for a batch of groups."""
        scores: Tensor = module(self.vectors[groups.queries], self.vectors[groups.pools])
        return scores


def read_table(embeddings: Path, split: str, device: torch.device) -> EmbeddingTable:
    """Return the fused embeddings of a split, `[N, D]`.

    Raises:
        RecordError: a missing or damaged file.
    """
    arrays = storage.read_arrays(embeddings)
    fused = torch.from_numpy(fuse(arrays[f"{split}_image"], arrays[f"{split}_question"]))
    return EmbeddingTable(fused.to(device))


def architecture_of(selector: Selector, table: EmbeddingTable) -> Architecture:
    """Return the architecture that fits the embeddings."""
    return Architecture(embedding=table.vectors.shape[1], **selector.model_dump())
