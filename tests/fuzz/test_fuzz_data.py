"""Raw data of both studies: question and annotation files, RL data in the original format, task files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bad_input import fewer_inputs, harmed, harmed_bytes, inputs, law_of, only_reading, same
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from test_fuzz_rows import TRAJECTORY

from lever_pipe.base.records import Example
from lever_pipe.intention.sources import json as task_files
from lever_pipe.intention.sources.protocol import RawFiles, parquet
from lever_pipe.lever import rl_data_io
from lever_pipe.lever.datasets import okvqa, vqav2
from lever_pipe.lever.datasets.protocol import ReadOptions, VqaFilePaths
from lever_pipe.lever.rl_data_formats import PoolRule, import_groups

IDS = (11, 7)
QUESTIONS = {
    "info": {"version": "1"}, "license": {}, "data_type": "mscoco", "data_subtype": "val2014",
    "task_type": "Open-Ended",
    "questions": [{"image_id": i + 1, "question": f"what {i}?", "question_id": i} for i in IDS],
}  # fmt: skip
ANNOTATIONS = {
    "info": {}, "license": {}, "data_type": "mscoco", "data_subtype": "val2014", "question_types": {},
    "annotations": [
        {
            "image_id": i + 1, "question_id": i, "question_type": "one", "answer_type": "other", "confidence": 3,
            "multiple_choice_answer": "red",
            "answers": [
                {"answer_id": n, "raw_answer": "Red", "answer_confidence": "yes", "answer": f"red{n % 2}"}
                for n in (1, 2, 3)
            ],
        }
        for i in IDS
    ],
}  # fmt: skip
OPTIONS = ReadOptions(image_name="{image_id}.png", n_answers=3)
ROW = {key: value for key, value in TRAJECTORY.items() if key != "query_id"}
ORIGINAL = {
    "_meta": {"fix_version": "v3"},
    "3": {
        "query": {
            "query_id": 3, "question_id": 9, "image_id": 1, "question": "what?",
            "gt_answers_raw": ["red"], "gt_answers_norm": ["red"],
        },
        "candidate_pool_ids": [7, 8],
        "pointer_candidates": [ROW, {**ROW, "pointer": [0, 1], "pointer_global": [7, 8]}],
    },
}  # fmt: skip
DETAIL = {"description": "size", "importance": 2, "inquiry": "which size?", "options": ["s", "m"]}


def task(name: str) -> dict[str, Any]:
    return {
        "id": name,
        "category": "shop",
        "task": f"buy {name}",
        "missing_details": [DETAIL, {**DETAIL, "importance": "3"}],
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with everything as it should be."""
    folder = tmp_path_factory.mktemp("raw")
    for i in IDS:
        Image.new("RGB", (4, 4), (i, 0, 0)).save(folder / f"{i + 1}.png")
    for name, value in (("questions", QUESTIONS), ("annotations", ANNOTATIONS)):
        (folder / f"{name}.json").write_text(json.dumps(value))
    for split in ("train", "val", "test"):
        (folder / f"{split}.json").write_text(json.dumps([task(split), task(f"{split} 2")]))
    return folder


@pytest.mark.parametrize("harmed_file", ["questions", "annotations"])
@pytest.mark.parametrize("reader", [okvqa, vqav2], ids=["okvqa", "vqav2"])
@inputs
@given(data=st.data())
def test_examples_are_what_the_files_say(folder: Path, reader: Any, harmed_file: str, data: st.DataObject) -> None:
    documents = {"questions": QUESTIONS, "annotations": ANNOTATIONS}
    path = folder / "harmed.json"
    path.write_bytes(content := data.draw(harmed(documents[harmed_file])))
    paths = {name: folder / f"{name}.json" for name in documents} | {harmed_file: path}
    files = VqaFilePaths(**paths, images=folder)
    taken, result = law_of(f"{reader.__name__} {harmed_file}", lambda: reader.read(files, OPTIONS), names=path.name)
    if not taken:
        return
    documents[harmed_file] = only_reading(content)
    asked = {entry["question_id"]: entry for entry in documents["questions"]["questions"]}
    answered = {entry["question_id"]: entry for entry in documents["annotations"]["annotations"]}
    assert len(asked) == len(documents["questions"]["questions"]) == len(answered) == len(result.examples)
    assert [example.question_id for example in result.examples] == sorted(asked)
    for example in result.examples:
        question, annotation = asked[example.question_id], answered[example.question_id]
        assert same([example.question, example.image_id], [question["question"], question["image_id"]])
        assert question["image_id"] == annotation["image_id"]
        assert same(example.answers, [answer["answer"] for answer in annotation["answers"]])
        assert len(example.answers) == OPTIONS.n_answers
        assert same(example.question_type, annotation.get("question_type", ""))


@inputs
@given(content=harmed(ORIGINAL))
def test_rl_data_are_what_the_file_says(folder: Path, content: bytes) -> None:
    path = folder / "rl.json"
    path.write_bytes(content)
    taken, result = law_of("rl data", lambda: rl_data_io.import_original(path), names=str(path))
    if not taken:
        return
    groups, report = result
    blocks = {key: block for key, block in only_reading(content).items() if key != "_meta"}
    assert len(blocks) == len(groups) + len(report.empty_queries)
    for group in groups:
        block = blocks[str(group.query.query_id)]
        assert same(group.query.model_dump(), block["query"])
        assert same(group.candidate_pool_ids, block["candidate_pool_ids"])
        kept = [
            row
            for row in block["pointer_candidates"]
            if not row.get("eval_failed") and row["vqa_eval_mode"] not in rl_data_io.FAILED_MODES
        ]
        assert len(kept) == len(group.pointer_candidates)
        for trajectory, row in zip(group.pointer_candidates, kept, strict=True):
            stated = {key: value for key, value in row.items() if key not in rl_data_io.IGNORED_FIELDS}
            assert same(trajectory.model_dump(), stated)


TRAIN = [
    Example(
        example_id=i, question_id=100 + i, image_id=i, image=f"{i}.png", image_digest=str(i), question=f"question {i}?",
        question_type="one", answers=("red",), answer="red",
    )
    for i in range(10)
]  # fmt: skip
ROW = {
    "pointer": [7, 8], "beam_rank": 0, "beam_score": 0.5, "logprob_score": -1.5, "gen_method": "beam",
    "temperature": None, "vqa_pred_answer": "red", "vqa_correct": 1, "vqa_acc_score": 1.0,
}  # fmt: skip


@inputs
@given(content=harmed({"3": {"pointer_candidates": [ROW, {**ROW, "pointer": [8, 9]}]}}))
def test_rl_data_without_pools_use_the_train_examples_that_the_file_says(folder: Path, content: bytes) -> None:
    path = folder / "other_rl.json"
    path.write_bytes(content)
    rule = PoolRule(size=5, seed=0, exclude_same_image=True)
    taken, result = law_of("rl data a", lambda: import_groups(path, "a", TRAIN, rule), names=str(path))
    if not taken:
        return
    blocks = only_reading(content)
    for group in result[0]:
        stated = [
            row["pointer"]
            for row in blocks[str(group.query.query_id)]["pointer_candidates"]
            if row.get("vqa_eval_mode") not in rl_data_io.FAILED_MODES and not row.get("eval_failed")
        ]
        assert same([list(row.pointer_global) for row in group.pointer_candidates], stated)
        assert len(set(group.candidate_pool_ids)) == 5


def holds(tasks: Any, records: list[Any]) -> bool:
    """Return whether tasks are what records say; an importance may stand as a digit."""
    dumped = [each.model_dump() for each in tasks]
    for record in records:
        for detail in record["missing_details"]:
            if isinstance(detail["importance"], str):
                detail["importance"] = int(detail["importance"])
    wanted = [{key: record[key] for key in ("id", "category", "task")} for record in records]
    details = [[{k: v for k, v in d.items() if k in DETAIL} for d in r["missing_details"]] for r in records]
    return same(dumped, wanted) and same([each["missing_details"] for each in dumped], details)


@inputs
@given(content=harmed([task("a"), task("b")]))
def test_tasks_are_what_the_file_says(folder: Path, content: bytes) -> None:
    path = folder / "tasks.json"
    path.write_bytes(content)
    files = RawFiles((path,), (folder / "val.json",), (folder / "test.json",))
    taken, splits = law_of("tasks json", lambda: task_files.read(None, files), names=str(path))
    if taken:
        assert holds(splits.train, only_reading(content))


@pytest.fixture(scope="module")
def rows(folder: Path) -> bytes:
    """Return a parquet file that names two tasks."""
    import duckdb

    path = folder / "whole.parquet"
    duckdb.sql(
        "SELECT 'interact_intention' AS data_source, {'id': name, 'style': 'x'} AS reward_model "
        "FROM (VALUES ('train'), ('train 2')) t(name)"
    ).write_parquet(str(path))
    return path.read_bytes()


@fewer_inputs
@given(data=st.data())
def test_parquet_rows_name_tasks_with_details(folder: Path, rows: bytes, data: st.DataObject) -> None:
    path = folder / "harmed.parquet"
    path.write_bytes(data.draw(harmed_bytes(rows)))
    files = RawFiles((path,), (folder / "val.json",), (folder / "test.json",), (folder / "train.json",))
    taken, splits = law_of("tasks parquet", lambda: parquet.read(None, files), names=str(path))
    if taken:
        assert {each.id for each in splits.train} <= {"train", "train 2"}
