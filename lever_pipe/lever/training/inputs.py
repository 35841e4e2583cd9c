"""From files to what the training stages compute on."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from lever_pipe.lever.training.embeddings import EmbeddingTable, read_table
from lever_pipe.lever.training.groups import Groups, load_groups, split_groups


class TrainingInputs(NamedTuple):
    """What the selector sees of all train examples, and the two parts of the RL data."""

    table: EmbeddingTable
    train: Groups
    validation: Groups


def read_training_inputs(
    groups: Path, embeddings: Path, device: torch.device, train_share: float, inputs: str = "fused"
) -> TrainingInputs:
    """Return embeddings and rewarded groups on one device.

    Raises:
        RecordError: a missing or damaged file, or no query for one of the two parts.
    """
    train, validation = split_groups(load_groups(groups).to(device), train_share)
    return TrainingInputs(read_table(embeddings, "train", device, inputs=inputs), train, validation)
