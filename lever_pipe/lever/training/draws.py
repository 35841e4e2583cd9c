"""Selections that a policy has drawn, with their rewards, and their file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.lever.training.groups import Groups

if TYPE_CHECKING:
    from lever_pipe.lvlms.asking.prompts import PromptIds


@dataclass(frozen=True, slots=True)
class SampledSelections:
    """B queries with G selections each, and the state of the policy that sampled them."""

    prompts: list[PromptIds]  # B G
    groups: Groups  # selections [B, G, S], whose entries after `lengths` do not count; rewards [B, G]
    lengths: Tensor  # [B, G] demonstrations in a selection
    taken: Tensor  # [B, G, S] bool: steps whose log-probabilities count: the picks, and a stop
    accuracies: Tensor  # [B, G]
    log_probs: Tensor  # [B, G] under the sampling policy
    scores: Tensor  # the sampling policy's logits, still in the autograd graph, for the first step on the batch


def save_draws(path: Path, sampled: Sequence[SampledSelections]) -> None:
    """Write the samples of an epoch: query ids `[B]`, selections `[B, G, S]`, their lengths and rewards `[B, G]`."""
    # int16 suffices for pool positions and lengths, and keeps the file small.
    arrays = {
        "queries": torch.cat([batch.groups.queries for batch in sampled]),
        "selections": torch.cat([batch.groups.selections for batch in sampled]).to(torch.int16),
        "lengths": torch.cat([batch.lengths for batch in sampled]).to(torch.int16),
        "rewards": torch.cat([batch.groups.rewards for batch in sampled]),
    }
    storage.write_arrays(path, {name: tensor.cpu().numpy() for name, tensor in arrays.items()})


def load_draws(path: Path, train: Groups) -> Groups:
    """Return an epoch's samples for some of the `train` queries, with their pools, in the order of sampling.

    Raises:
        RecordError: selections of several lengths, or of another query.
    """
    arrays = {name: torch.from_numpy(array) for name, array in storage.read_arrays(path).items()}
    queries, selections = arrays["queries"].to(train.queries.device), arrays["selections"].long()
    if (arrays["lengths"] != selections.shape[2]).any():
        found = str(sorted(set(arrays["lengths"].flatten().tolist())))
        raise RecordError(f"{path}: expected selections of one length", found=found, do="Draw one: on_policy.shots.")
    # The ids of `train` are ascending (`pad_groups`), so a binary search finds the rows.
    rows = torch.searchsorted(train.queries, queries).clamp(max=len(train) - 1)
    if (train.queries[rows] != queries).any():
        found = str(sorted(set(queries.tolist()) - set(train.queries.tolist()))[:5])
        raise RecordError(f"{path}: expected queries that train", found=found, do="Rerun train_on_policy_epoch.")
    rewards = arrays["rewards"].to(queries.device)
    valid = torch.ones_like(rewards, dtype=torch.bool)
    return Groups(queries, train.pools[rows], selections.to(queries.device), rewards, valid)
