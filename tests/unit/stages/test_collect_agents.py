from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import agent_runs
import numpy as np
import pandas as pd
import pytest
from agent_runs import ARMS, Study

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.experiment.agent_results import CollectAgentsConfig
from lever_pipe.intention.records import EpisodeRow, EvaluationRow
from lever_pipe.report.inference import agent_runs as columns
from lever_pipe.report.inference.agent_runs import read_agent_runs
from lever_pipe.stages.agent_results import collect_agents

SMALL = Study(arms=ARMS[:2], steps=10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("collected")
    agent_runs.collect(path, SMALL)
    return path


def collect(files: dict[str, Any], folder: Path, study: Study = SMALL) -> None:
    tables = {name: folder / f"{name}.csv" for name in ("curves", "episodes_table", "runs")}
    collect_agents(**files, **tables, config=CollectAgentsConfig(runs=study.runs))


def test_the_columns_and_the_counts_of_lines(folder: Path) -> None:
    curves, episodes, runs = (
        pd.read_csv(folder / "tables" / f"{name}.csv") for name in ("curves", "episodes_table", "runs")
    )
    assert tuple(curves.columns) == columns.CURVES_COLUMNS
    assert tuple(episodes.columns) == columns.EPISODES_COLUMNS
    assert tuple(runs.columns) == columns.RUNS_COLUMNS
    assert len(runs) == 4  # baseline with three seeds, kl_only with one
    # greedy and four samples of 8 tasks at steps 0, 5 and 10, and of 12 held-out tasks for two checkpoints; the start's
    assert len(episodes) == 4 * (3 * 8 * 5 + 2 * 12 * 5) + 12 * 5
    start = episodes[episodes["arm"] == "start"]
    assert set(zip(start["seed"], start["step"], start["split"], start["checkpoint"], strict=True)) == {
        (0, 0, "test", "last")
    }
    assert set(curves.loc[curves["arm"] == "start", "split"]) == {"test"}
    assert (curves["split"] == "train").sum() == 4 * 10 * len(agent_runs.step_values(SMALL, SMALL.runs[0], 1))


def test_values_are_those_of_the_rows(folder: Path) -> None:
    found = read_agent_runs(folder / "tables" / "curves.csv", folder / "tables" / "runs.csv")
    location = folder / "arm~baseline" / "seed~1"
    for row in storage.read_rows(location / "evaluations.jsonl", EvaluationRow):
        assert found.validation("baseline", 1, row.mode)[row.step] == pytest.approx(row.values["reward"], rel=1e-8)
        assert found.validation("baseline", 1, row.mode, "n_samples")[row.step] == row.n_samples
    assert found.training("baseline", 1, "kl")[7] == pytest.approx(0.0071, rel=1e-8)  # 0.001 x 7 + 1e-4
    assert found.training("kl_only", 0, "entropy")[10] == pytest.approx(0.38, rel=1e-8)
    assert found.seeds("baseline") == (0, 1, 2)


def test_episodes_that_the_user_ended_are_in_no_mean(tmp_path: Path) -> None:
    """Of the first task no sampled episode is sound at step 5, of the second three of four."""
    files, location = agent_runs.write_runs(tmp_path, SMALL), tmp_path / "arm~baseline" / "seed~0"
    rows = storage.read_rows(location / "episodes.jsonl", EpisodeRow)
    at = [n for n, row in enumerate(rows) if (row.step, row.mode) == (5, "sampled")]
    for n in at[:5]:
        rows[n] = rows[n].model_copy(update={"end": "failed"})
    storage.write_rows(location / "episodes.jsonl", rows)
    of_tasks = np.split(np.array([math.fsum(rows[n].rewards) for n in at]), 8)
    of_tasks = [of_tasks[1][1:], *of_tasks[2:]]
    evaluations = storage.read_rows(location / "evaluations.jsonl", EvaluationRow)
    values = {"reward": float(np.mean([of.mean() for of in of_tasks])), "tasks_lost": 1.0}
    (number,) = [n for n, row in enumerate(evaluations) if (row.step, row.mode) == (5, "sampled")]
    evaluations[number] = evaluations[number].model_copy(update={"values": evaluations[number].values | values})
    storage.write_rows(location / "evaluations.jsonl", evaluations)
    collect(files, tmp_path)
    found = read_agent_runs(tmp_path / "curves.csv", tmp_path / "runs.csv")
    names = ("n_tasks", "tasks_lost", "ceiling")
    n_tasks, lost, ceiling = (found.validation("baseline", 0, "sampled", name)[5] for name in names)
    assert (n_tasks, lost) == (7, 1)
    assert ceiling == pytest.approx((17.9 - 1.7) / 7, rel=1e-8)


def test_a_converted_log_may_end_early(tmp_path: Path) -> None:
    study = Study(arms=ARMS[:1], engine="verl", steps=465, executed=45, has_test=False, modes=("greedy",), samples=1)
    paths = agent_runs.collect(tmp_path, study)
    found = read_agent_runs(paths["curves"], paths["runs"]).fact("baseline", 0)
    assert (found.planned_steps, found.executed_steps, found.reason, found.device) == (465, 45, "log ended", "")
    assert found.version.startswith("UserRL")
    assert len(pd.read_csv(paths["episodes_table"])) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[:1], r"found 12 episodes|evaluations of"),
        (lambda rows: [row | {"step": 5} for row in rows], "episodes of the greedy evaluation on test at step 5"),
    ],
)
def test_a_start_that_is_not_on_held_out_tasks_is_refused(tmp_path: Path, change, message: str) -> None:  # type: ignore[no-untyped-def]
    files, path = agent_runs.write_runs(tmp_path, SMALL), tmp_path / "start" / "untrained_evaluations.jsonl"
    lines = change([json.loads(line) for line in path.read_text().splitlines()])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(RecordError, match=message) as caught:
        collect(files, tmp_path)
    assert "expected the start policy on held-out tasks" in str(caught.value)


def broken(folder: Path, name: str, change) -> None:  # type: ignore[no-untyped-def]
    path = folder / "arm~baseline" / "seed~0" / name
    lines = [json.loads(line) for line in path.read_text().splitlines()] if name.endswith("l") else None
    value = change(lines if lines is not None else json.loads(path.read_text()))
    text = "".join(json.dumps(line) + "\n" for line in value) if lines is not None else json.dumps(value)
    path.write_text(text)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("done.json", lambda row: row | {"executed_steps": 8}, "reason 'finished' after 8 of 10 planned steps"),
        (
            "done.json",
            lambda row: row | {"executed_steps": 8, "reason": "log ended"},
            "reason 'log ended' after 8 of 10 planned steps",
        ),
        ("done.json", lambda row: row | {"planned_steps": 9}, "10 executed of 9 planned steps"),
        ("done.json", lambda row: row | {"seed": 3}, "the files of arm baseline, seed 3"),
        ("metrics.jsonl", lambda rows: rows[:4] + rows[5:], "9 of 10 steps in order, without step 5"),
        ("metrics.jsonl", lambda rows: rows + rows[-1:], "11 of 10 steps in order, some twice"),
        ("evaluations.jsonl", lambda rows: rows[2:], "no greedy evaluation at step 0"),
        ("evaluations.jsonl", lambda rows: rows[:-2], "no greedy evaluation at step 10"),
        ("evaluations.jsonl", lambda rows: rows[:2] + rows[3:], "greedy and sampled evaluations at different steps"),
        ("evaluations.jsonl", lambda rows: rows + rows[-1:], "sampled evaluations that stand twice"),
        ("episodes.jsonl", lambda rows: rows[1:], "7 of 8 episodes of the greedy evaluation on val at step 0"),
        (
            "episodes.jsonl",
            lambda rows: [rows[0] | {"rewards": [9.0]}, *rows[1:]],
            "of the episodes of the greedy evaluation on val at step 0, which says",
        ),
        (
            "episodes.jsonl",
            lambda rows: [*rows, rows[-1] | {"step": 7}],
            "1 episodes without an evaluation",
        ),
    ],
)
def test_a_run_that_is_not_whole_is_refused_by_name(tmp_path: Path, name: str, change, message: str) -> None:  # type: ignore[no-untyped-def]
    study = replace(SMALL, arms=(ARMS[0].model_copy(update={"seeds": (0,)}),))
    files = agent_runs.write_runs(tmp_path, study)
    broken(tmp_path, name, change)
    with pytest.raises(RecordError) as caught:
        collect(files, tmp_path, study)
    assert "arm baseline, seed 0" in str(caught.value)
    assert message in str(caught.value)
    assert not (tmp_path / "curves.csv").exists()
