"""From files to what the training stages compute on."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from lever_pipe import storage
from lever_pipe.config import Reward, Selector
from lever_pipe.records import RlGroup, Trajectory
from lever_pipe.rewards import RewardInputs, RewardWeights, reward
from lever_pipe.selector.features import fuse
from lever_pipe.selector.network import Architecture
from lever_pipe.training.groups import Groups, pad_groups, split_groups
from lever_pipe.training.loop import EmbeddingTable


class TrainingInputs(NamedTuple):
    """The fused embeddings of all train examples and the two parts of the RL data."""

    table: EmbeddingTable
    train: Groups
    validation: Groups


def read_table(embeddings: Path, split: str) -> EmbeddingTable:
    """Return the fused embeddings of a split, `[N, D]`."""
    arrays = storage.read_arrays(embeddings)
    return EmbeddingTable(torch.from_numpy(fuse(arrays[f"{split}_image"], arrays[f"{split}_question"])))


def read_training_inputs(
    *, rl_data: Path, embeddings: Path, reward_config: Reward, train_share: float
) -> TrainingInputs:
    """Return embeddings and RL groups with one reward a trajectory."""
    weights = RewardWeights(**reward_config.model_dump(exclude={"mode"}))

    def reward_of(trajectory: Trajectory) -> float:
        return reward(reward_config.mode, _reward_inputs(trajectory), weights)

    groups = pad_groups(storage.read_rows(rl_data, RlGroup), reward_of)
    train, validation = split_groups(groups, train_share)
    return TrainingInputs(read_table(embeddings, "train"), train, validation)


def architecture_of(selector: Selector, table: EmbeddingTable) -> Architecture:
    """Return the architecture that fits the embeddings."""
    return Architecture(embedding=table.vectors.shape[1], **selector.model_dump())


def _reward_inputs(trajectory: Trajectory) -> RewardInputs:
    quality = trajectory.beam_score if trajectory.beam_score is not None else -(trajectory.logprob_score or 0.0)
    return RewardInputs(
        correct=trajectory.vqa_correct,
        accuracy=trajectory.vqa_acc_score,
        gt_prob=trajectory.vqa_gt_prob,
        relevance=trajectory.vqa_rel_score,
        quality=quality,
    )
