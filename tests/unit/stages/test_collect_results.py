from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
import synthetic_results as synthetic

from lever_pipe import storage
from lever_pipe.errors import RecordError
from lever_pipe.records import Cell, EpochMetrics, PolicyRef
from lever_pipe.stage_configs import CollectResultsConfig
from lever_pipe.stages.collect_results import collect_results

FIRST_COLUMNS = (
    "policy,stage,base_rce_epoch,kl_beta,seed,epoch,subset,samples,shots,accuracy,n_questions,n_distinct_prompts"
)


NOTHING = CollectResultsConfig(main_preset="main", evaluated=(), trained=(), samples=(8,), shots=(1,))


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return synthetic.collect(tmp_path_factory.mktemp("collect"), synthetic.FULL)


def test_scores_begin_with_the_agreed_columns(outputs: dict[str, Path]) -> None:
    head = outputs["scores"].read_text().splitlines()[0]
    assert head == f"{FIRST_COLUMNS},preset"
    assert outputs["arms"].read_text().splitlines()[0] == head


def test_every_cell_and_subset_is_one_row(outputs: dict[str, Path]) -> None:
    # 5 baselines + 3 seeds x (5 RCE + 6 betas x 3 epochs) = 74 policies; x 16 cells x (prefix + 4 random)
    assert len(read(outputs["scores"])) == 74 * 16 * 5
    assert len(read(outputs["arms"])) == 69 * 16 * 5  # no baselines in another preset


def test_presets_are_kept_apart(outputs: dict[str, Path]) -> None:
    assert {row["preset"] for row in read(outputs["scores"])} == {"", "main"}
    assert {row["preset"] for row in read(outputs["arms"])} == {"published"}
    assert {row["preset"] for row in read(outputs["training"])} == {"main"}
    assert {row["preset"] for row in read(outputs["arms_training"])} == {"published"}


def test_a_row_says_what_its_cell_said(outputs: dict[str, Path]) -> None:
    row = next(
        row
        for row in read(outputs["scores"])
        if row["kl_beta"] == "0.145"
        and (row["seed"], row["epoch"], row["subset"], row["samples"], row["shots"])
        == ("2", "3", "random-3", "400", "1")
    )
    # 40 + 2 * 2 + 0.5 * 3 + 0.25 + (2 - 1) - log2(4) = 44.75; random subset 3 lies 3 points above
    assert row["accuracy"] == "47.75"
    assert (row["stage"], row["base_rce_epoch"]) == ("grpo", "5")
    assert (row["n_questions"], row["n_distinct_prompts"]) == ("400", "399")
    assert row["policy"] == "preset~main/grpo/base~5/beta~0.145/seed~2/epoch~3"


def test_baselines_lose_their_folder_and_come_first(outputs: dict[str, Path]) -> None:
    rows = read(outputs["scores"])
    names = list(dict.fromkeys(row["policy"] for row in rows if row["stage"] == "baseline"))
    assert names == ["oracle", "random-0", "random-1", "similar_both", "zero_shot"]
    stages = list(dict.fromkeys(row["stage"] for row in rows))
    assert stages == ["baseline", "rce", "grpo"]


def test_epochs_are_ordered_as_numbers(outputs: dict[str, Path]) -> None:
    epochs = [
        int(row["epoch"])
        for row in read(outputs["training"])
        if (row["kl_beta"], row["seed"], row["metric"]) == ("0.12", "0", "kl")
    ]
    assert epochs == list(range(1, 51))  # text order would put 10 before 2


def test_the_order_of_files_does_not_matter(tmp_path: Path) -> None:
    raw = synthetic.write_raw(tmp_path, synthetic.SMOKE)
    texts = []
    for turn in (1, -1):
        folder = tmp_path / str(turn)
        outputs = {name: folder / name for name in ("scores", "training", "rl_data", "arms", "arms_training", "card")}
        collect_results(
            cells=raw["cells"][::turn],  # type: ignore[index]
            metrics=raw["metrics"][::turn],  # type: ignore[index]
            rl_summary=raw["rl_summary"],  # type: ignore[arg-type]
            config=synthetic.collect_config(synthetic.SMOKE),
            **outputs,
        )
        texts.append([outputs[name].read_bytes() for name in ("scores", "training", "rl_data", "arms")])
    assert texts[0] == texts[1]


def test_a_missing_cell_names_its_target(tmp_path: Path) -> None:
    raw = synthetic.write_raw(tmp_path / "raw", synthetic.SMOKE)
    name = "preset~main/grpo/base~5/beta~0.15/seed~0/epoch~1"
    kept = []
    for path in raw["cells"]:  # type: ignore[union-attr]
        rows = [c for c in storage.read_rows(path, Cell) if (c.policy.name, c.samples, c.shots) != (name, 16, 2)]
        storage.write_rows(path, rows)
        kept.append(path)
    study = tmp_path / "results" / "lever"
    outputs = {n: study / "tables" / n for n in ("scores", "training", "rl_data", "arms", "arms_training", "card")}
    with pytest.raises(RecordError, match=re.escape(f"snakemake {study}/{name}/scores/samples~16/shots~2.json")):
        collect_results(
            cells=tuple(kept),
            metrics=raw["metrics"],  # type: ignore[arg-type]
            rl_summary=raw["rl_summary"],  # type: ignore[arg-type]
            config=synthetic.collect_config(synthetic.SMOKE),
            **outputs,
        )
    assert not study.exists()  # nothing is written before everything is there


def test_a_missing_epoch_names_its_target(tmp_path: Path) -> None:
    raw = synthetic.write_raw(tmp_path / "raw", synthetic.SMOKE)
    outputs = {n: tmp_path / "lever" / "tables" / n for n in ("scores", "training", "rl_data", "arms", "arms_training")}
    with pytest.raises(RecordError, match=r"lever/preset~main/rce/seed~0/epoch~1/metrics.json"):
        collect_results(
            cells=raw["cells"],  # type: ignore[arg-type]
            metrics=raw["metrics"][1:],  # type: ignore[index]
            rl_summary=raw["rl_summary"],  # type: ignore[arg-type]
            card=tmp_path / "card",
            config=synthetic.collect_config(synthetic.SMOKE),
            **outputs,
        )


def test_rl_summary_becomes_metric_and_value(outputs: dict[str, Path]) -> None:
    rows = {row["metric"]: row["value"] for row in read(outputs["rl_data"])}
    assert rows == {
        "all_negative_queries": "100",
        "dropped_rows_error": "3",
        "mean_reward": "0.61",
        "positive_pct": "25.5",
        "queries": "800",
    }


def test_two_values_for_one_metric_are_refused(tmp_path: Path) -> None:
    policy = PolicyRef(name="preset~main/rce/seed~0/epoch~1", stage="rce", preset="main", seed=0, epoch=1)
    paths = []
    for index, value in enumerate((1.0, 2.0)):
        paths.append(tmp_path / f"{index}.json")
        storage.write_row(paths[-1], EpochMetrics(policy=policy, values={"loss": value}))
    storage.write_json(tmp_path / "summary.json", {})
    outputs = {name: tmp_path / name for name in ("scores", "training", "rl_data", "arms", "arms_training", "card")}
    with pytest.raises(RecordError, match="one value for each policy"):
        collect_results(
            cells=(),
            metrics=tuple(paths),
            rl_summary=tmp_path / "summary.json",
            config=NOTHING,
            **outputs,
        )


def test_a_nested_summary_is_refused(tmp_path: Path) -> None:
    storage.write_json(tmp_path / "summary.json", {"methods": {"beam": 3}})
    outputs = {name: tmp_path / name for name in ("scores", "training", "rl_data", "arms", "arms_training", "card")}
    with pytest.raises(RecordError, match="flat JSON"):
        collect_results(
            cells=(),
            metrics=(),
            rl_summary=tmp_path / "summary.json",
            config=NOTHING,
            **outputs,
        )


def test_the_card_names_the_inputs(outputs: dict[str, Path]) -> None:
    card = json.loads((outputs["scores"].parent / "run.json").read_text())
    assert card["stage"] == "collect_results"
    assert {"cells[0]", "metrics[0]", "rl_summary"} <= set(card["inputs"])
