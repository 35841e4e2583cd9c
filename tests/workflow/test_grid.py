"""The grid as a user runs it: a value more on an axis runs its own jobs, one's own selector enters as a cell."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest

from .conftest import ROOT, Project, copy_project

pytestmark = pytest.mark.workflow

CONFIG = "config/smoke.yaml"
PAGE = {"compare_cells": 1, "build_grid": 1}


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return a project whose small grid is complete."""
    project = copy_project(tmp_path_factory.mktemp("grid"))
    shutil.copy2(ROOT / "tests/workflow/grid.yaml", project.folder / CONFIG)
    text = project.snakemake("--cores", "2")
    assert "Grid:    results/smoke/grid/report.html" in text
    return project


def rows(project: Project) -> list[dict[str, str]]:
    with (project.folder / "results/smoke/grid/leaderboard.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_finished_grid_has_nothing_to_do_and_a_line_for_each_cell(grid: Project) -> None:
    assert grid.planned() == {}
    found = {(row["data"], row["selector"], row["trained_on"]) for row in rows(grid)}
    assert found == {
        (data, *of)
        for data, other in (("world", "world_b"), ("world_b", "world"))
        for of in (("random", ""), ("random_all", ""), ("world", data), ("world", other))
    }
    assert {row["shots"] for row in rows(grid)} == {"1", "2", "mean"}


def test_a_sampler_more_makes_its_own_settings_alone(grid: Project) -> None:
    """In two data sets: pools, RL data, a selector, two baselines, a transferred one; embeddings are there."""
    with grid.edited(CONFIG, "samplers: [uniform]", "samplers: [uniform, mixture]"):
        assert grid.planned() == {
            "sample_pools": 4,
            **dict.fromkeys(("propose_trajectories", "generate_rl_data", "merge_rl_data"), 2),
            **dict.fromkeys(("reward_groups", "initialise_selector", "train_rce_epoch"), 2),
            "select_demonstrations": 4,
            "select_baseline": 4,
            "emulate_first_items": 2,
            "answer_prompts": 8,
            "score_answers": 8,
            **PAGE,
        }


def test_a_preset_more_trains_its_own_selectors_alone(grid: Project) -> None:
    more = "    - {preset: published, seeds: [0], rce_epochs: 1, base_rce_epochs: [1]}\n  reference"
    with grid.edited(CONFIG, "  reference", more):
        assert grid.planned() == {
            "reward_groups": 2,
            "initialise_selector": 2,
            "train_rce_epoch": 2,
            "select_demonstrations": 4,
            "emulate_first_items": 2,
            "answer_prompts": 6,  # its own, and batches with the other selectors, whose answers stay
            "score_answers": 6,
            **PAGE,
        }


def test_an_edit_of_a_data_set_leaves_the_other(grid: Project) -> None:
    with grid.edited(CONFIG, "mapping_seed: 9", "mapping_seed: 10"):
        planned = grid.planned()
        assert (planned["generate_world"], planned["prepare_examples"], planned["train_rce_epoch"]) == (2, 2, 1)


def test_a_selector_of_ones_own_stands_next_to_the_others(grid: Project) -> None:
    examples = grid.folder / "results/smoke/grid/data~world/examples"
    train, queries = (
        list(map(json.loads, (examples / f"{n}.jsonl").read_text().splitlines())) for n in ("train", "eval")
    )
    demonstrations = " ".join(str(example["question_id"]) for example in train[:2])
    lines = [f"mine,{query['question_id']},{demonstrations}" for query in queries]
    (grid.folder / "mine.csv").write_text("\n".join(["policy,question_id,demonstrations", *lines]) + "\n")
    with grid.edited(CONFIG, "  transfer", "  policies: {mine: {selections: {world: mine.csv}}}\n  transfer"):
        assert grid.planned() == {"select_own": 1, "answer_prompts": 1, "score_answers": 1, **PAGE}
        grid.snakemake("--cores", "2")
        (mine,) = (row for row in rows(grid) if row["selector"] == "mine" and row["shots"] == "mean")
        assert (mine["data"], mine["objective"], mine["training_prompts"]) == ("world", "own", "0")
        assert 0 <= float(mine["accuracy"]) <= 100
        (grid.folder / "mine.csv").write_text("policy,question_id,demonstrations\nmine,1,2\n")
        done = grid.call("--configfile", CONFIG, "--cores", "1")
        assert done.returncode
        assert "line 2: expected a question of the evaluation split; found question_id 1" in done.stdout
    assert Path(grid.folder / "results/smoke/grid/report.html").exists()
