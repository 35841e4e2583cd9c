from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.records import ExampleId, PolicyScores, QuestionScore
from lever_pipe.report.inference.blocks import Block, mean_block, on_common_seeds
from lever_pipe.report.inference.per_question import read_groups, read_scores


def write(path: Path, values: dict[tuple[int, int], float], *policies: str) -> Path:
    rows = tuple(QuestionScore(query_id=ExampleId(q), shots=k, accuracy=v) for (q, k), v in values.items())
    storage.write_rows(path, [PolicyScores(policy=name, questions=rows) for name in policies or ("a",)])
    return path


def test_rows_may_come_in_any_order(tmp_path: Path) -> None:
    path = write(tmp_path / "s", {(1, 2): 0.3, (0, 2): 0.2, (1, 1): 0.6, (0, 1): 0.1})
    found = read_scores(path)["a"]
    assert (list(found.index), list(found)) == ([0, 1], [1, 2])
    assert found.to_numpy().tolist() == [[0.1, 0.2], [0.6, 0.3]]


def test_a_missing_score_is_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "s", {(0, 1): 1.0, (1, 1): 1.0, (0, 2): 1.0})
    with pytest.raises(RecordError, match="each question at each shot count") as error:
        read_scores(path)
    assert error.value.found == "3 of 2 x 2"
    with pytest.raises(RecordError, match="0 of 0 x 0"):
        read_scores(write(tmp_path / "empty", {}))


def test_runs_stand_in_the_order_given_with_their_mean_over_shots(tmp_path: Path) -> None:
    names = ["preset~p/rce/seed~1/epoch~5", "baseline/random-0", "preset~p/rce/seed~0/epoch~5"]
    paths = [write(tmp_path / str(i), {(q, k): 0.1 * i for q in (4, 7) for k in (1, 2, 3)}, *names) for i in range(3)]
    groups = read_groups(names, paths, questions=(4, 7), shots=(1, 3))
    assert list(groups) == ["preset~p/rce/epoch~5", "baseline/random"]
    rce = groups["preset~p/rce/epoch~5"]
    assert (rce.runs, rce.seeds, rce.cells) == ((names[0], names[2]), ("1", "0"), ("1", "3", "mean"))
    assert rce.values.shape == (2, 2, 3)
    assert rce.values[:, 0, 2] == pytest.approx([0.0, 0.2], abs=1e-12)
    assert rce.is_trained
    assert not groups["baseline/random"].is_trained
    with pytest.raises(RecordError, match="expected scores of 2 questions at shots"):
        read_groups(names, paths, questions=(4, 8), shots=(1, 3))
    with pytest.raises(RecordError, match="at shots"):
        read_groups(names, paths, questions=(4, 7), shots=(1, 4))
    with pytest.raises(RecordError, match="for baseline/other; found 0 questions"):
        read_groups(["baseline/other"], paths[:1], questions=(4, 7), shots=(1, 3))


def group(name: str, *runs: str) -> Block:
    return Block(name, runs, ("mean",), np.zeros((len(runs), 2, 1)))


def test_two_trained_groups_meet_on_the_seeds_of_both() -> None:
    rce = group("rce", *(f"preset~p/rce/seed~{s}/epoch~1" for s in (2, 0, 1)))
    sampled = group("drawn", *(f"preset~p/on_policy/base~1/beta~0/seed~{s}/epoch~1" for s in (1, 2, 7)))
    left, right = on_common_seeds(rce, sampled)
    assert (left.seeds, right.seeds) == (("2", "1"), ("2", "1"))
    assert left.shares_seeds_with(right)
    marked = np.arange(3.0)[:, None, None] + np.zeros((3, 2, 1))  # each run by its number
    left, right = on_common_seeds(replace(rce, values=marked), replace(sampled, values=marked))
    assert (left.values[:, 0, 0].tolist(), right.values[:, 0, 0].tolist()) == ([0.0, 2.0], [1.0, 0.0])
    oracle = group("oracle", "baseline/oracle")
    other = group("other", "preset~p/rce/seed~9/epoch~1")
    assert [side.runs for side in on_common_seeds(rce, rce)] == [rce.runs] * 2
    for one in (oracle, other):  # nothing in common: as they are
        assert on_common_seeds(rce, one)[0] is rce
        assert on_common_seeds(rce, one)[1] is one


def test_a_mean_over_groups_pairs_by_the_seeds_of_all() -> None:
    names = [f"preset~p/grpo/base~1/beta~{beta}/epoch~2" for beta in ("0", "0.15", "all")]
    by_seed = {0: (2, 0, 1), 1: (1, 2)}
    groups = [
        Block(
            names[k],
            tuple(names[k].replace("/epoch", f"/seed~{s}/epoch") for s in seeds),
            ("1", "mean"),
            np.array(seeds, dtype=float)[:, None, None] + np.full((len(seeds), 2, 2), 10.0 * k),
        )
        for k, seeds in by_seed.items()
    ]
    found = mean_block(names[2], groups)
    assert found is not None
    assert (found.name, found.seeds, found.cells) == (names[2], ("2", "1"), ("1", "mean"))
    assert found.runs[0] == "preset~p/grpo/base~1/beta~all/seed~2/epoch~2"
    assert found.values[:, 0, 0].tolist() == [7.0, 6.0]  # (2 + 12) / 2 and (1 + 11) / 2
    assert mean_block(names[2], [groups[0], groups[1].of_seeds([])]) is None
    assert groups[0].at(("mean",)).cells == ("mean",)
    assert groups[0].at(()).values.shape == (3, 2, 2)


def test_runs_pair_by_seed_or_as_the_same_draws() -> None:
    rce = group("rce", "preset~p/rce/seed~0/epoch~1", "preset~p/rce/seed~1/epoch~1")
    grpo = group("grpo", *(f"preset~p/grpo/base~1/beta~0/seed~{s}/epoch~1" for s in (0, 1)))
    turned = group("grpo", *reversed(grpo.runs))
    draws, one = group("baseline/random", "baseline/random-0", "baseline/random-1"), group("oracle", "baseline/oracle")
    assert rce.shares_seeds_with(grpo)
    assert not rce.shares_seeds_with(turned)
    assert not rce.shares_seeds_with(draws)
    assert draws.shares_seeds_with(draws)
    assert not one.shares_seeds_with(draws)
    assert rce.over(slice(1)).values.shape == (2, 1, 1)
