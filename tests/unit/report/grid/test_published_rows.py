"""Every published row has one place in the grid; the numbers are those that a count of the file by hand gives."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

from lever_pipe.base.errors import RecordError
from lever_pipe.report.grid.published import FLAMINGO, QWEN, Coordinates, Part, PlacedRow, Reason, beside, placed

REFERENCE = Path(__file__).parents[4] / "resources" / "reference" / "lever-plus-published.csv"
ROW = {
    "source_file": "x.md", "dataset": "okvqa", "lvlm": QWEN, "sampler": "TextSimSampler", "kl_beta": "",
    "stage": "v1_sft", "epoch": "", "samples": "300", "shot": "2", "metric": "vqa_acc_pct", "value": "50", "notes": "",
}  # fmt: skip


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    with REFERENCE.open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


def one(**values: str) -> PlacedRow:
    return placed([ROW | values])[0]


def test_each_row_is_in_one_part(rows: list[dict[str, str]]) -> None:
    found = placed(rows)
    assert [row.number for row in found] == list(range(1, 1095))
    parts = Counter(row.part for row in found)
    assert parts == {
        "sft": 525, "beam_data": 26, "random_full_train": 8, "heads": 51, "plans": 83, "rl_data": 47, "vqav2": 18,
        "older_data": 143, "documents": 193,
    }  # fmt: skip
    assert parts.keys() == set(get_args(Part))


def test_parts_by_lvlm_and_column(rows: list[dict[str, str]]) -> None:
    """Beside the parts stands what the columns alone say, without the table of stages."""
    found = placed(rows)
    pairs = list(zip(rows, found, strict=True))
    for selector, stage, counts in (
        ("train_ids", "v0_sft", (65, 120)), ("bi_encoder", "v1_sft", (64, 48)), ("pointer", "v2_sft", (68, 48)),
        ("pointer_lora", "v2_lora_sft", (64, 48)),
    ):  # fmt: skip
        of_stage = [row for raw, row in pairs if raw["stage"] == stage]
        assert {row.selector for row in of_stage} == {selector}
        assert Counter(row.lvlm for row in of_stage) == dict(zip(("qwen2_5_vl_3b", "imported"), counts, strict=True))
    assert {row.part for raw, row in pairs if raw["stage"].startswith("v4")} == {"heads"}
    assert {row.part for raw, row in pairs if raw["stage"].startswith("grpo_plan")} == {"plans"}
    accuracies = [r for raw, r in pairs if raw["dataset"] == "vqav2" and raw["metric"] == "vqa_acc_pct"]
    assert {row.part for row in accuracies} == {"vqav2"}
    assert len([row for row in found if row.dataset == "vqav2"]) == 25
    other = [r for r in found if r.sampler in ("text_similarity", "image_similarity", "mixture")]
    assert Counter(row.lvlm for row in other) == {"qwen2_5_vl_3b": 150, "imported": 204}
    assert Counter(row.samples for row in found if row.samples in (300, 1000, "all")) == {300: 144, 1000: 6, "all": 32}
    assert sum(row.shots in (6, 8) for row in found) == 8


def test_what_a_run_can_stand_beside(rows: list[dict[str, str]]) -> None:
    found = placed(rows)
    reasons = Counter(row.reason for row in found)
    # Of 813 rows of Qwen: 64 of LoRA, 19 of four heads, 1 of unknown samples are none; of 281 others 48 contradict.
    assert reasons == {
        "comparable": 813 - 64 - 19 - 1,
        "adapters_without_effect": 64,
        "head_below_chance": 19,
        "unknown_samples": 1,
        "two_values_a_cell": 48,
        "other_lvlm": 281 - 48,
    }
    assert reasons.keys() == set(get_args(Reason))
    targets = [row for row in found if row.reason == "comparable"]
    assert {row.lvlm for row in targets} == {"qwen2_5_vl_3b"}
    must = [
        r for r in targets if r.part in ("beam_data", "random_full_train") or (r.part, r.selector) == ("sft", "pointer")
    ]
    assert len(must) == 68 + 13 + 4


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {"part": "sft", "selector": "bi_encoder", "objective": "sft", "sampler": "text_similarity", "shots": 2}),
        ({"stage": "v2_sft"}, {"selector": "pointer", "layers": 3}),
        ({"stage": "v2_sft", "metric": "val_loss", "samples": ""}, {"layers": None, "samples": None}),
        ({"stage": "v4-10_stop"}, {"selector": "pointer/stop", "objective": "grpo"}),
        ({"stage": "v4-1_fair grpo"}, {"selector": "pointer/gated", "objective": "grpo"}),
        ({"stage": "v4-5_additive rce"}, {"selector": "pointer/additive", "objective": "rce", "reason": "comparable"}),
        ({"stage": "v4-6_coverage(rce)"}, {"objective": "rce", "reason": "head_below_chance"}),
        ({"stage": "v3_3layer_rce25+grpo25"}, {"part": "older_data", "objective": "grpo", "layers": 3}),
        ({"stage": "rce_only_merged_data"}, {"part": "older_data", "objective": "rce", "layers": 1}),
        ({"stage": "rce_scratch"}, {"part": "documents", "objective": "rce"}),
        ({"stage": "grpo_balanced_v2"}, {"part": "vqav2"}),
        ({"stage": "grpo_balanced"}, {"part": "documents"}),
        ({"stage": "grpo_plan5", "notes": "x;split=train"}, {"part": "plans", "split": "train"}),
        ({"samples": "all(5046)", "shot": "avg1-4"}, {"samples": "all", "shots": "mean", "split": "eval"}),
        ({"samples": "all?"}, {"reason": "unknown_samples", "samples": None}),
        ({"source_file": "README.md#3.3.1", "lvlm": FLAMINGO}, {"reason": "other_lvlm"}),
        (
            {"source_file": "README.md#3.3.1", "lvlm": FLAMINGO, "stage": "v0_sft"},
            {"reason": "two_values_a_cell"},
        ),
    ],
)  # fmt: skip
def test_coordinates_of_single_rows(values: dict[str, str], expected: dict[str, object]) -> None:
    row = one(**values)._asdict()
    assert {name: row[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("column", "value"),
    [("stage", "v5"), ("sampler", "BestSampler"), ("lvlm", "Idefics"), ("samples", "many"), ("shot", "2.5")],
)
def test_what_the_grid_does_not_know_is_refused(column: str, value: str) -> None:
    with pytest.raises(RecordError, match=rf"row 2, {column}: expected one of .*found '{value}'"):
        placed([ROW, ROW | {column: value}])


def test_a_row_stands_beside_the_cell_with_its_coordinates_and_no_other() -> None:
    row = ROW | {"samples": "200"}
    others = [row | {"samples": "all"}, row | {"shot": "3"}, row | {"stage": "v2_lora_sft"}, row | {"metric": "loss"}]
    rows = placed([row, *others])
    at = Coordinates("okvqa", "text_similarity", "bi_encoder", "sft", None, 200, 2)
    parts, found = beside(rows, {at: 60.0, at._replace(dataset="vqav2"): 10.0})
    assert [(of.number, ours) for of, ours in found] == [(1, 60.0)]
    (sft,) = (part for part in parts if part.n_rows)
    assert (sft.part, sft.n_rows, sft.n_targets, sft.n_filled) == ("sft", 5, 2, 1)
    assert sft.left_out == {"adapters_without_effect": 1}
