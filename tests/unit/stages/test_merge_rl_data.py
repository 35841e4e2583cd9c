from __future__ import annotations

from pathlib import Path

import pytest
from builders import POOL, example, random_pools, rl_groups, trajectory

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.records import RlGroup, Trajectory
from lever_pipe.experiment.rl_data import Balance, ImportRlDataConfig, MergeRlDataConfig
from lever_pipe.lever.rl_data_files import write_original
from lever_pipe.stages.rl_data import import_rl_data, merge_rl_data

POOLS = random_pools(6, 30)


def rows_of(query: int) -> list[Trajectory]:
    return [trajectory(POOLS[query], pointer, accuracy) for pointer, accuracy in (((0, 1), 0.6), ((2, 1), 0.0))]


def merge(folder: Path, shards: list[list[Trajectory]], balance: Balance | None = None) -> list[RlGroup]:
    paths = tuple(folder / f"shard{i}" for i in range(len(shards)))
    for path, rows in zip(paths, shards, strict=True):
        storage.write_rows(path, rows)
    storage.write_rows(folder / "pools", POOLS)
    storage.write_rows(folder / "examples", [example(i) for i in range(30)])
    merge_rl_data(
        trajectories=paths,
        train_pools=folder / "pools",
        train_examples=folder / "examples",
        rl_data=folder / "rl_data",
        summary=folder / "summary",
        config=MergeRlDataConfig(balance=balance),
    )
    return storage.read_rows(folder / "rl_data", RlGroup)


def test_shards_become_one_line_a_query(tmp_path: Path) -> None:
    shards = [[row for query in part for row in rows_of(query)] for part in ((0, 2, 4), (1, 3, 5))]
    groups = merge(tmp_path, shards)
    assert [group.query.query_id for group in groups] == list(range(6))
    assert [group.candidate_pool_ids for group in groups] == [of.candidates for of in POOLS]
    assert [list(group.pointer_candidates) for group in groups] == [rows_of(query) for query in range(6)]
    assert merge(tmp_path, shards[::-1]) == groups


def test_a_balanced_merge_says_what_it_kept(tmp_path: Path) -> None:
    # Every other query has two positive rows of two, the others one.
    up = {"vqa_correct": 1, "vqa_acc_score": 0.3}
    rows = [row.model_copy(update=up) if q % 2 and not row.vqa_correct else row for q in range(6) for row in rows_of(q)]
    assert [group.query.query_id for group in merge(tmp_path, [rows], Balance())] == [0, 2, 4]
    summary = storage.read_json(tmp_path / "summary")
    counts = {name: summary[name] for name in summary if name.startswith("balance")}
    assert counts == {"balance_kept": 3, "balance_rejected_low": 0, "balance_rejected_high": 3}
    assert summary["queries"] == 3
    with pytest.raises(RecordError, match=r"expected at least 2 queries with 0\.6 to 0\.7"):
        merge(tmp_path, [rows], Balance(low=0.6, high=0.7))


def test_imported_queries_are_balanced_too(tmp_path: Path) -> None:
    groups = rl_groups(
        8, 30, is_consistent=True
    )  # levels 0, 0.6, 1 in turns: four of six are positive, of every fourth group none
    write_original(tmp_path / "original.json", groups)
    storage.write_rows(tmp_path / "examples", [example(i) for i in range(30)])
    config = ImportRlDataConfig(
        import_format="g", pool_size=POOL, pool_seed=0, exclude_same_image=True,
        balance=Balance(low=0.5, high=0.7),
    )  # fmt: skip
    outputs = {name: tmp_path / name for name in ("rl_data", "summary", "proposals", "train_pools")}
    selected = import_rl_data(
        original=tmp_path / "original.json", train_examples=tmp_path / "examples", **outputs, config=config
    )
    assert selected == 6
    assert storage.read_rows(tmp_path / "rl_data", RlGroup) == [
        group for group in groups if group.query.query_id % 4 < 3
    ]
    summary = storage.read_json(tmp_path / "summary")
    assert [summary[name] for name in ("queries", "balance_kept", "balance_rejected_low")] == [6, 6, 2]
