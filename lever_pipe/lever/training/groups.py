"""RL data as padded tensors: every query's pool and its scored selections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.records import ExampleId, Pool, QueryBeams, RlGroup, Trajectory

BATCH = 256
"""Queries at one time outside training; results for a query do not depend on it."""


@dataclass(frozen=True, slots=True)
class Groups:
    """B queries with at most G selections of S shots out of K candidates."""

    queries: Tensor  # [B] rows of the embedding table
    pools: Tensor  # [B, K] rows of the embedding table
    selections: Tensor  # [B, G, S] pool positions; 0 where invalid
    rewards: Tensor  # [B, G] float32; 0 where invalid
    valid: Tensor  # [B, G] bool

    def __len__(self) -> int:
        return len(self.queries)

    def take(self, rows: Tensor | slice) -> Groups:
        """Return the groups at `rows`, in that order; a slice shares memory."""
        return Groups(self.queries[rows], self.pools[rows], self.selections[rows], self.rewards[rows], self.valid[rows])

    def rows(self, size: int) -> list[slice]:
        """Return the slices of the groups in parts of `size`, the last one shorter."""
        return [slice(first, first + size) for first in range(0, len(self), size)]

    def to(self, device: torch.device) -> Groups:
        """Return the groups on a device."""
        return Groups(**{name: tensor.to(device) for name, tensor in asdict(self).items()})


class _Scored(NamedTuple):
    """A query with its pool, and selections from the pool with their rewards."""

    query: ExampleId
    pool: Sequence[ExampleId]
    selections: Sequence[Sequence[int]]
    rewards: Sequence[float]


def pad_groups(groups: Sequence[RlGroup], reward_of: Callable[[Trajectory], float]) -> Groups:
    """Return RL groups, in query-id order, as tensors padded to the largest group."""
    return _padded(
        _Scored(
            group.query.query_id,
            group.candidate_pool_ids,
            [t.pointer for t in group.pointer_candidates],
            [reward_of(t) for t in group.pointer_candidates],
        )
        for group in groups
    )


def groups_of_beams(
    rows: Sequence[QueryBeams],
    pools: Sequence[Pool],
    order: Callable[[tuple[ExampleId, ...]], tuple[ExampleId, ...]],
) -> Groups:
    """Return beam data as groups: `rows[i]` was searched in `pools[i]`; a reward is a beam's total probability.

    Selections have the order of the beams, the best one first. `order` maps demonstrations from the order of the search
    to the order of the prompt, which the selector learns.
    """
    groups = []
    for row, pool in zip(rows, pools, strict=True):
        positions = {candidate: position for position, candidate in enumerate(pool.candidates)}
        selections = [[positions[i] for i in order(beam.demonstrations)] for beam in row.beams]
        groups.append(_Scored(row.query_id, pool.candidates, selections, [beam.probability for beam in row.beams]))
    return _padded(groups)


def _padded(groups: Iterable[_Scored]) -> Groups:
    ordered = sorted(groups, key=lambda group: group.query)
    for group, following in pairwise(ordered):
        if group.query == following.query:
            expected = f"RL data: query {group.query}: expected one group"
            raise RecordError(expected, found="two", do="Rebuild the RL data.")
    shots = _one_size("selection", (len(selection) for group in ordered for selection in group.selections))
    _one_size("pool", (len(group.pool) for group in ordered))
    widest = max(len(group.selections) for group in ordered)
    selections = torch.zeros(len(ordered), widest, shots, dtype=torch.long)
    rewards = torch.zeros(len(ordered), widest)
    valid = torch.zeros(len(ordered), widest, dtype=torch.bool)
    for row, group in enumerate(ordered):
        size = len(group.selections)
        if not size:
            raise RecordError(
                f"RL data: query {group.query}: expected at least one trajectory",
                found="none",
                do="Drop the query or rebuild the RL data.",
            )
        selections[row, :size] = torch.tensor(group.selections)
        rewards[row, :size] = torch.tensor(group.rewards)
        valid[row, :size] = True
    queries = torch.tensor([int(group.query) for group in ordered])
    pools = torch.tensor([group.pool for group in ordered])
    return Groups(queries, pools, selections, rewards, valid)


def save_groups(path: Path, groups: Groups) -> None:
    """Write groups as named arrays."""
    storage.write_arrays(path, {name: tensor.numpy() for name, tensor in asdict(groups).items()})


def load_groups(path: Path) -> Groups:
    """Return the groups of a file."""
    arrays = storage.read_arrays(path)
    names = {field.name for field in fields(Groups)}
    if arrays.keys() != names:
        raise RecordError(
            f"{path}: expected the arrays {sorted(names)}", found=str(sorted(arrays)), do="Rebuild the file."
        )
    return Groups(**{name: torch.from_numpy(array) for name, array in arrays.items()})


def split_groups(groups: Groups, train_share: float) -> tuple[Groups, Groups]:
    """Return the first `int(train_share * B)` queries for training and the rest for validation."""
    n_train = int(train_share * len(groups))
    if not 0 < n_train < len(groups):
        raise RecordError(
            f"RL data: expected queries for training and validation at train_share={train_share}",
            found=f"{n_train} and {len(groups) - n_train}",
            do="Raise rl_data.n_queries or fix train_share.",
        )
    rows = torch.arange(len(groups))
    return groups.take(rows[:n_train]), groups.take(rows[n_train:])


def batches(n: int, size: int, generator: torch.Generator, *, most: int | None = None) -> list[Tensor]:
    """Return `most` of `0..n-1`, or all, shuffled, in batches of `size`, the last one shorter."""
    return list(torch.randperm(n, generator=generator)[:most].split(size))  # type: ignore[no-untyped-call]


def _one_size(name: str, sizes: Iterable[int]) -> int:
    distinct = set(sizes)
    if len(distinct) != 1:
        raise RecordError(
            f"RL data: expected one {name} length", found=str(sorted(distinct) or "none"), do="Rebuild the RL data."
        )
    return distinct.pop()
