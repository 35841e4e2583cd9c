from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import example, pool, rl_groups, trajectory

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.records import RlGroup, Trajectory
from lever_pipe.base.torch_streams import torch_generator
from lever_pipe.lever.training.groups import batches, load_groups, pad_groups, save_groups, split_groups
from lever_pipe.lever.trajectories import make_group


def reward_of(row: Trajectory) -> float:
    return 10 * row.vqa_acc_score


def group(query: int, candidates: list[int], rows: list[tuple[list[int], float]]) -> RlGroup:
    of = pool(query, candidates)
    return make_group(example(query), of, [trajectory(of, pointer, accuracy) for pointer, accuracy in rows])


def test_groups_become_tensors_in_query_order() -> None:
    padded = pad_groups(
        [
            group(7, [5, 6, 9], [([2, 0], 1.0)]),
            group(3, [8, 4, 2], [([0, 1], 0.0), ([1, 2], 0.6)]),
        ],
        reward_of,
    )
    assert padded.queries.tolist() == [3, 7]
    assert padded.pools.tolist() == [[8, 4, 2], [5, 6, 9]]
    assert padded.selections.tolist() == [[[0, 1], [1, 2]], [[2, 0], [0, 0]]]
    assert padded.rewards.tolist() == [[0, 6], [10, 0]]
    assert padded.valid.tolist() == [[True, True], [True, False]]
    assert len(padded) == 2
    assert padded.take(torch.tensor([1])).pools.tolist() == [[5, 6, 9]]


def test_unequal_lengths_and_empty_groups_are_refused() -> None:
    whole = group(0, [1, 2, 3], [([0, 1], 1.0)])
    cases = [
        ([whole, group(1, [4, 2, 3], [([0], 1.0)])], "selection"),
        ([whole, group(1, [4, 2], [([0, 1], 1.0)])], "pool"),
        ([whole, group(9, [4, 2, 3], [])], "query 9"),
        ([], "selection"),
    ]
    for groups, message in cases:
        with pytest.raises(RecordError, match=message):
            pad_groups(groups, reward_of)


def test_groups_survive_their_file(tmp_path: Path) -> None:
    padded = pad_groups(rl_groups(5, 40), reward_of)
    save_groups(tmp_path / "g", padded)
    read = load_groups(tmp_path / "g")
    for name, tensor in asdict(padded).items():
        assert torch.equal(getattr(read, name), tensor), name
        assert getattr(read, name).dtype == tensor.dtype
    storage.write_arrays(tmp_path / "g", {"queries": np.zeros(3)})
    with pytest.raises(RecordError, match="selections"):
        load_groups(tmp_path / "g")


def test_the_first_share_trains_and_the_rest_validates() -> None:
    padded = pad_groups(rl_groups(10, 40), reward_of)
    train, validation = split_groups(padded, 0.85)
    assert train.queries.tolist() == list(range(8))  # int(8.5)
    assert validation.queries.tolist() == [8, 9]
    assert len(split_groups(padded, 0.999999)[1]) == 1  # int(9.99999) = 9
    with pytest.raises(RecordError, match="train_share"):
        split_groups(padded, 0.05)  # int(0.5) = 0


def test_batches_partition_the_queries_and_follow_the_generator() -> None:
    parts = batches(10, 4, torch_generator(0, "a"))
    assert [len(part) for part in parts] == [4, 4, 2]
    assert sorted(torch.cat(parts).tolist()) == list(range(10))
    again, other = (torch.cat(batches(10, 4, torch_generator(0, name))) for name in "ab")
    assert torch.equal(torch.cat(parts), again)
    assert not torch.equal(again, other)
    assert torch.cat(parts).tolist() != list(range(10))
