from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import pytest
from builders import example, pool, trajectory

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.records import RewardTies, RlGroup
from lever_pipe.experiment.reward import MeasureRewardsConfig, Reward
from lever_pipe.lever.trajectories import make_group
from lever_pipe.stages.rewards import measure_rewards

LIMITS = {"z_clamp": 3.0, "advantage_std_floor": 0.1, "advantage_clamp": 5.0}
ACCURACY = Reward(mode="soft_only")
EXPECTED = Reward(mode="expected_only")
BOTH = Reward(mode="accuracy_plus_expected", hard=0.5, soft=0.5)


def group(query: int, accuracies: Sequence[float], probabilities: Sequence[float]) -> RlGroup:
    of = pool(query, range(10, 18))
    rows = [
        trajectory(of, (rank, rank + 1), accuracy, vqa_gt_prob=probability)
        for rank, (accuracy, probability) in enumerate(zip(accuracies, probabilities, strict=True))
    ]
    return make_group(example(query), of, rows)


GROUPS = [
    group(0, [1, 1, 1, 1], [0.5, 0.5, 0.5, 0.5]),  # nothing differs
    group(1, [0, 0, 0, 0], [0.1, 0.2, 0.3, 0.4]),  # all wrong, some less so
    group(2, [0, 0, 0, 1], [0.5, 0.5, 0.5, 0.5]),  # one right: the best two differ
    group(3, [1, 1, 1, 0], [0.5, 0.5, 0.5, 0.5]),  # the best three tie, the fourth differs
    group(4, [1, 1, 0, 0], [0.9, 0.8, 0.1, 0.1]),  # the best two tie by accuracy, not by probability
]
HAND = {
    #                       differ  best two  best three  best four
    "soft_only": (3 / 5, {"2": 1 / 5, "3": 2 / 5, "4": 3 / 5}),  # 2 3 4; 2; 2 4; 2 3 4
    "expected_only": (2 / 5, {"2": 2 / 5, "3": 2 / 5, "4": 2 / 5}),  # 1 4
    "accuracy_plus_expected": (4 / 5, {"2": 3 / 5, "3": 3 / 5, "4": 4 / 5}),  # 1 2 3 4; 1 2 4; 1 2 4; 1 2 3 4
}


def measured(folder: Path, groups: Sequence[RlGroup], *rewards: Reward) -> list[RewardTies]:
    files = {name: folder / f"{name}.jsonl" for name in ("rl_data", "ties", "histogram")}
    storage.write_rows(files["rl_data"], groups)
    config = MeasureRewardsConfig(rewards=rewards, selected=(2, 3, 4), **LIMITS)
    rows = measure_rewards(**files, config=config)
    assert storage.read_rows(files["ties"], RewardTies) == rows
    return rows


def test_the_shares_are_those_counted_by_hand(tmp_path: Path) -> None:
    rows = measured(tmp_path, GROUPS, ACCURACY, EXPECTED, BOTH)
    assert [row.mode for row in rows] == list(HAND)
    for row in rows:
        differ, best = HAND[row.mode]
        assert row.queries == 5
        assert row.differ == pytest.approx(differ)
        assert row.best_differ == pytest.approx(best)


def test_a_row_names_the_weights_and_they_count(tmp_path: Path) -> None:
    without = Reward(mode="accuracy_plus_expected", hard=0.5, soft=0.0)
    rows = measured(tmp_path, GROUPS, BOTH, without)
    assert [row.weights for row in rows] == [one.model_dump(exclude={"mode"}) for one in (BOTH, without)]
    assert rows[1].differ == pytest.approx(HAND["soft_only"][0])
    assert rows[1].best_differ == pytest.approx(HAND["soft_only"][1])


def test_no_group_is_told(tmp_path: Path) -> None:
    with pytest.raises(RecordError):
        measured(tmp_path, [], ACCURACY)


def test_bins_hold_every_selection_once_and_zeros_apart(tmp_path: Path) -> None:
    measured(tmp_path, [*GROUPS, group(5, [0, 0.3, 0.6, 0.6], [0.5] * 4)], ACCURACY)
    with (tmp_path / "histogram.jsonl").open() as handle:
        rows = list(csv.DictReader(handle))
    assert {(row["mode"], row["soft"]) for row in rows} == {("soft_only", "1")}
    counts: dict[tuple[str, str], dict[tuple[float, float], int]] = {}
    for row in rows:
        counts.setdefault((row["what"], row["selected"]), {})[float(row["low"]), float(row["high"])] = int(row["n"])
    # 24 selections: 10 of accuracy 1, 11 of 0, and one query with 0, 0.3 and twice 0.6.
    assert counts["reward", "all"] == {(0, 0): 11, (0.3, 0.4): 1, (0.6, 0.7): 2, (1, 1.1): 10}
    assert {key: sum(of.values()) for key, of in counts.items()} == {
        ("reward", "all"): 24, ("advantage", "2"): 12, ("advantage", "3"): 18, ("advantage", "4"): 24,
        ("advantage", "all"): 24,
    }  # fmt: skip
    # The best two differ in query 2 alone: the difference (1 - 0) is one standard deviation of two values on each side.
    assert counts["advantage", "2"] == {(-0.75, -0.5): 1, (0, 0): 10, (0.5, 0.75): 1}
    assert sum(float(row["share"]) for row in rows) == pytest.approx(5)
