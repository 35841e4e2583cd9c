from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import synthetic_results as synthetic

from lever_pipe.base import storage
from lever_pipe.base.records import EpochMetrics
from lever_pipe.experiment.collected import CollectResultsConfig
from lever_pipe.stages.collect_results import SCORES_COLUMNS, collect_results

WITH_ON_POLICY = replace(synthetic.SMOKE, on_policy_betas=(0.12,))


def collect(folder: Path, of: synthetic.Size | CollectResultsConfig, **inputs: Any) -> None:
    config = synthetic.collect_config(of) if isinstance(of, synthetic.Size) else of
    collect_results(**inputs, **synthetic.parameters_in(folder), config=config)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return synthetic.collect(tmp_path_factory.mktemp("collect"), synthetic.FULL)


def test_every_cell_and_subset_is_one_row_of_its_presets_file(outputs: dict[str, Path]) -> None:
    # 5 baselines + 3 seeds x (5 RCE + 6 betas x 3 epochs) + (3 on-policy betas + 2 marks) x 2 epochs = 84 policies;
    # x 16 cells x (prefix + 4 random); no baselines in another preset
    for name, n_policies, presets in (("scores", 84, {"", "main"}), ("arms", 69, {"published"})):
        rows = read(outputs[name])
        assert tuple(rows[0]) == SCORES_COLUMNS
        assert len(rows) == n_policies * 16 * 5
        assert {row["preset"] for row in rows} == presets
    for name, preset in (("training", "main"), ("arms_training", "published")):
        assert {row["preset"] for row in read(outputs[name])} == {preset}


def test_a_row_says_what_its_cell_said(outputs: dict[str, Path]) -> None:
    row = next(
        row
        for row in read(outputs["scores"])
        if row["kl_beta"] == "0.145"
        and (row["seed"], row["epoch"], row["subset"], row["samples"], row["shots"])
        == ("2", "3", "random-3", "400", "1")
    )
    # 40 + 2 * 2 + 0.5 * 3 + 0.25 + (2 - 1) - log2(4) = 44.75; random subset 3 is 3 points above
    assert row["accuracy"] == "47.75"
    assert (row["stage"], row["base_rce_epoch"]) == ("grpo", "5")
    assert (row["n_questions"], row["n_distinct_prompts"]) == ("400", "399")
    assert row["policy"] == "preset~main/grpo/base~5/beta~0.145/seed~2/epoch~3"


def test_steps_and_prompts_are_counted_over_the_epochs_of_a_run(outputs: dict[str, Path]) -> None:
    head = "stage,mode,base_rce_epoch,kl_beta,seed,epoch,step,prompts,metric,value,preset"
    assert outputs["steps_csv"].read_text().splitlines()[0] == head
    rows = read(outputs["steps_csv"])
    assert len(rows) == 4 * 2 * synthetic.N_STEPS  # three betas and REINFORCE, two epochs each
    of_run = [row for row in rows if (row["stage"], row["kl_beta"]) == ("grpo", "0.12")]
    assert [(row["epoch"], row["step"]) for row in of_run] == [("1", str(i)) for i in range(3)] + [
        ("2", str(i)) for i in range(3, 6)
    ]
    # Epoch 1 asked 30 + 1 prompts.
    assert [int(row["prompts"]) for row in of_run] == [11, 21, 31, 31 + 12, 31 + 22, 31 + 32]
    assert [row["value"] for row in of_run] == ["1", "1.1", "1.2", "2", "2.1", "2.2"]
    assert {(row["mode"], row["base_rce_epoch"], row["seed"], row["preset"]) for row in rows} == {
        ("on_policy", "5", "0", "main")
    }


def test_every_policy_is_charged_alike(tmp_path: Path) -> None:
    raw = synthetic.write_raw(tmp_path, WITH_ON_POLICY)
    n_prompts = {"preset~main/on_policy/base~5/beta~0.12/seed~0/epoch~1": 30.0}
    n_prompts |= {name.replace("epoch~1", "epoch~2"): 12.0 for name in n_prompts}
    names = [*n_prompts, "preset~main/grpo/base~5/beta~0.12/seed~0/epoch~2", "preset~main/rce/seed~0/epoch~2"]
    paths = []
    for index, name in enumerate(names):
        values = {"loss": 1.0} | ({"lvlm_prompts": n_prompts[name]} if name in n_prompts else {})
        paths.append(tmp_path / f"cost-{index}.json")
        storage.write_row(paths[-1], EpochMetrics(policy=name, values=values))
    config = CollectResultsConfig(main_preset="main", presets=("main",), train_shares=(0.8,))
    found = {**raw, "cells": (), "steps": (), "metrics": tuple(paths), "groups": raw["groups"][:1]}  # type: ignore[index]
    collect(tmp_path, config, **found)
    rows = read(synthetic.outputs_in(tmp_path)["costs"])
    charged = {
        (row["stage"], row["mode"], row["epoch"]): (row["rl_data_prompts"], row["own_prompts"], row["prompts"])
        for row in rows
    }
    # four of five queries train, with four trajectories each; offline GRPO reuses earlier requests
    assert charged == {
        ("rce", "", "2"): ("16", "0", "16"),
        ("grpo", "offline", "2"): ("16", "0", "16"),
        ("grpo", "on_policy", "1"): ("16", "30", "46"),
        ("grpo", "on_policy", "2"): ("16", "42", "58"),
    }
    assert {row["seed"] for row in rows} == {"0"}
