from __future__ import annotations

import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lever_pipe.base.errors import DataError
from lever_pipe.experiment.agent_tasks import SyntheticTasks
from lever_pipe.experiment.environment import Environment
from lever_pipe.intention.environment import ceiling
from lever_pipe.intention.lexicon import CATEGORIES, IMPORTANCES, RELEVANT, SLOTS, VALUES
from lever_pipe.intention.sources import intentiongym, synthetic
from lever_pipe.intention.sources.protocol import RawFiles, Splits


def detail(**values: Any) -> dict[str, Any]:
    base = {"description": "Pot material", "importance": "1", "inquiry": "Clay?", "options": ["clay", "plastic"]}
    return base | values


def record(name: Any, **values: Any) -> dict[str, Any]:
    base = {"id": name, "category": "Gardening", "task": f"Set up {name}.", "missing_details": [detail()]}
    return base | values


def without(values: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != key}


def write(path: Path, value: Any) -> tuple[Path, ...]:
    path.write_text(json.dumps(value), encoding="utf-8")
    return (path,)


def read_json(folder: Path, train: Any, val: Any = None, test: Any = None) -> Splits:
    files = RawFiles(
        train=write(folder / "train.json", train),
        val=write(folder / "val.json", [record("v")] if val is None else val),
        test=write(folder / "test.json", [record("t")] if test is None else test),
    )
    return intentiongym.read(None, files)


# The embedded tasks


@pytest.fixture(scope="module")
def splits() -> Splits:
    return synthetic.read(SyntheticTasks())


def test_the_embedded_splits_have_the_specified_sizes_and_distinct_ids(splits: Splits) -> None:
    assert [len(split) for split in splits[:3]] == [380, 40, 200]
    assert len({task.id for split in splits[:3] for task in split}) == 620
    assert splits.n_left_out == 0


def test_an_embedded_task_hides_some_slots_and_states_the_others(splits: Splits) -> None:
    for task in (*splits.train, *splits.val, *splits.test):
        words = task.task.split()
        begin = words.index(task.category) + 1
        assert words[:2] == ["task", ":"]
        assert words[-1] == "."
        assert words[begin:-1:3] == [","] * (len(words[begin:-1]) // 3)
        stated, values = words[begin + 1 : -1 : 3], [*words[2 : begin - 1], *words[begin + 2 : -1 : 3]]
        hidden = [d.description for d in task.missing_details]
        relevant = RELEVANT[task.category]
        assert len(values) == 3
        assert set(stated) | set(hidden) == set(relevant)
        assert len(stated) + len(hidden) == 5
        assert hidden == sorted(hidden, key=relevant.index)
        assert all(d.importance == IMPORTANCES[relevant.index(d.description)] for d in task.missing_details)
        assert set(values) <= set(VALUES)
        assert all(len(set(d.options)) == 3 and set(d.options) <= set(VALUES) for d in task.missing_details)
        assert all(d.inquiry == f"what about {d.description}" for d in task.missing_details)


def test_more_embedded_tasks_than_requests_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "VALUES", VALUES[:3])
    found = "none left for train-[0-9]+ in 1000 draws with 5 hidden details of '[a-z]+'. Lower n_train"
    with pytest.raises(DataError, match=found):
        synthetic.read(SyntheticTasks(n_train=1000))


def test_the_embedded_distribution_is_the_specified_one() -> None:
    tasks = synthetic.read(SyntheticTasks(n_train=8000)).train
    sizes = Counter(len(task.missing_details) for task in tasks)
    # Four binomial standard errors of 8,000 draws.
    for n, chance in zip((2, 3, 4, 5), (0.075, 0.375, 0.35, 0.2), strict=True):
        assert sizes[n] / 8000 == pytest.approx(chance, abs=4 * (chance * (1 - chance) / 8000) ** 0.5)
    # E[n] / 5 times what five slots pay (1 + 3 * 0.7 + 0.4): 3.675 / 5 * 3.5; standard error 0.007.
    mean = statistics.fmean(ceiling(task, Environment()) for task in tasks)
    assert mean == pytest.approx(2.5725, abs=0.03)
    assert {task.category for task in tasks} == set(CATEGORIES)
    assert {d.description for task in tasks for d in task.missing_details} == set(SLOTS) - {"size"}  # relevant to none
    first = Counter(task.missing_details[0].options[0] for task in tasks)
    assert all(first[value] == pytest.approx(1000, abs=4 * 30) for value in VALUES)  # 4 standard errors


# JSON


def test_json_splits_are_read_and_the_test_split_is_held_out(tmp_path: Path) -> None:
    train = [record("a", missing_details=[detail(importance=3), detail(importance="2"), without(detail(), "options")])]
    splits = read_json(
        tmp_path, train, [record("v")], [record("a"), record("t", task="T"), record("v"), record("u", task="U")]
    )
    (task,) = splits.train
    assert [d.importance for d in task.missing_details] == [3, 2, 1]
    assert task.missing_details[0].options == ("clay", "plastic")
    assert task.missing_details[2].options == ()
    assert [t.id for t in splits.test] == ["t", "u"]
    assert splits.n_left_out == 2


@pytest.mark.parametrize("known", ["A", "V"])
def test_a_request_that_is_trained_or_validated_on_is_not_held_out(tmp_path: Path, known: str) -> None:
    splits = read_json(
        tmp_path, [record("a", task="A")], [record("v", task="V")], [record("t"), record("u", task=known)]
    )
    assert ([t.id for t in splits.test], splits.n_left_out) == (["t"], 1)


# Parquet


def write_parquet(path: Path, *rows: tuple[str, Any]) -> tuple[Path, ...]:
    import duckdb

    with duckdb.connect(":memory:") as connection:
        connection.execute("CREATE TABLE t (data_source VARCHAR, reward_model STRUCT(style VARCHAR, id VARCHAR))")
        for source, name in rows:
            connection.execute("INSERT INTO t VALUES (?, {'style': 'rule', 'id': ?})", [source, name])
        connection.execute(f"COPY t TO '{path}' (FORMAT parquet)")
    return (path,)


OURS = "interact_intention"


def parquet_files(folder: Path, *train: tuple[str, Any], val: str = "v") -> RawFiles:
    """Return files in which `a`, `b`, `c` have their own details and the held-out file has `v`, `t`, `u`."""
    held_out = write(folder / "held_out.json", [record(name) for name in "vtu"])
    return RawFiles(
        train=write_parquet(folder / "train.parquet", *train),
        val=write_parquet(folder / "val.parquet", (OURS, val)),
        test=held_out,
        details=write(folder / "details.json", [record(name) for name in "abc"]) + held_out,
    )


def test_parquet_rows_name_tasks_in_their_order_and_json_details_them(tmp_path: Path) -> None:
    splits = intentiongym.read(None, parquet_files(tmp_path, (OURS, "c"), (OURS, "a"), (OURS, "t")))
    assert [[task.id for task in split] for split in splits[:3]] == [["c", "a", "t"], ["v"], ["u"]]
    assert splits.n_left_out == 2


def test_rows_of_other_environments_are_passed_over(tmp_path: Path) -> None:
    splits = intentiongym.read(None, parquet_files(tmp_path, ("interact_travel", "zzz"), (OURS, "a")))
    assert [task.id for task in splits.train] == ["a"]
    with pytest.raises(DataError, match=r"train\.parquet: "):
        intentiongym.read(None, parquet_files(tmp_path, ("interact_travel", "zzz")))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(OURS, "a"), (OURS, "lost")], r"row 1: reward_model\.id: expected a task with details .*; found 'lost'"),
        ([(OURS, "a"), (OURS, "a")], r"row 1: reward_model\.id: expected .* that no earlier row names; found 'a'"),
        ([(OURS, None)], r"row 0: reward_model\.id: expected a task .*; found null"),
        ([(OURS, "v")], r"val\.parquet: expected no task of .*train\.parquet; found 'v'"),
    ],
)
def test_an_invalid_row_is_one_clear_line(tmp_path: Path, rows: list[tuple[str, Any]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        intentiongym.read(None, parquet_files(tmp_path, *rows))


# The real files
