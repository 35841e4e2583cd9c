from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.experiment.agent_tasks import PrepareTasksConfig, SyntheticTasks
from lever_pipe.intention.records import Task
from lever_pipe.stages.agent_training import prepare_tasks

NAMES = ("train_tasks", "val_tasks", "test_tasks")


def run(folder: Path, config: PrepareTasksConfig, **files: tuple[Path, ...]) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    raw = dict.fromkeys(("train_file", "val_file", "test_file", "details"), ()) | files
    outputs = {name: folder / f"{name}.jsonl" for name in NAMES}
    return prepare_tasks(**raw, **outputs, summary=folder / "summary.json", config=config)


def tasks(folder: Path, name: str) -> list[Task]:
    return storage.read_rows(folder / f"{name}.jsonl", Task)


def record(name: str, task: str, *importances: int) -> dict[str, Any]:
    details = [{"description": f"d{i}", "importance": str(value)} for i, value in enumerate(importances)]
    return {"id": name, "category": "c", "task": task, "missing_details": details}


def write(path: Path, *records: dict[str, Any]) -> tuple[Path, ...]:
    path.write_text(json.dumps(records))
    return (path,)


def test_the_embedded_tasks_are_written_with_a_summary(tmp_path: Path) -> None:
    config = PrepareTasksConfig(source="synthetic", synthetic=SyntheticTasks(n_train=30, n_val=5, n_test=9))
    summary = run(tmp_path, config)
    assert [len(tasks(tmp_path, name)) for name in NAMES] == [30, 5, 9]
    assert [summary[split]["n_tasks"] for split in ("train", "val", "test")] == [30, 5, 9]
    assert summary == storage.read_json(tmp_path / "summary.json")
    assert sum(summary["train"]["n_details"].values()) == 30
    assert summary["test"]["n_requests_also_trained"] == 0


def test_files_are_summed_up_by_hand_made_numbers(tmp_path: Path) -> None:
    files = {
        "train_file": write(tmp_path / "train.json", record("a", "x", 3, 2), record("b", "y", 1)),
        "val_file": write(tmp_path / "val.json", record("v", "x", 2, 2, 2)),
        "test_file": write(tmp_path / "test.json", record("t", "z", 3), record("v", "x", 1), record("u", "y", 3, 3)),
    }
    summary = run(tmp_path / "out", PrepareTasksConfig(source="intentiongym", synthetic=None), **files)
    # Ceilings 1.7 and 0.4: mean 1.05, sd 1.3 / sqrt(2).
    assert summary["train"] == {
        "n_tasks": 2,
        "n_categories": 1,
        "ceiling_mean": 1.05,
        "ceiling_sd": pytest.approx(statistics.stdev([1.7, 0.4]), abs=1e-9),  # the rounding of the file
        "ceiling_min": 0.4,
        "ceiling_max": 1.7,
        "n_details": {"1": 1, "2": 1},
        "n_importance": {"1": 1, "2": 1, "3": 1},
    }
    assert (summary["val"]["ceiling_mean"], summary["val"]["ceiling_sd"]) == (2.1, 0.0)
    shared = ("n_requests_also_trained", "n_hidden_also_trained")
    assert [[summary[split][name] for name in shared] for split in ("val", "test")] == [[1, 0], [0, 1]]
    assert (summary["test"]["n_tasks"], summary["test"]["n_left_out"]) == (1, 2)
    assert [task.id for task in tasks(tmp_path / "out", "test_tasks")] == ["t"]


def test_nothing_is_written_of_invalid_files(tmp_path: Path) -> None:
    files = {
        name: write(tmp_path / f"{name}.json", record(name, "x")) for name in ("train_file", "val_file", "test_file")
    }
    with pytest.raises(RecordError, match=r"train_file\.json: .*'0\.missing_details'"):
        run(tmp_path / "out", PrepareTasksConfig(source="intentiongym", synthetic=None), **files)
    assert list((tmp_path / "out").iterdir()) == []
