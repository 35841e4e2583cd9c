"""Feed corrupted documents to every reader: it refuses each by name, or reads exactly the document's content.

A reader of JSON gets corruption to the structure of a sound document and to its bytes; its truth is `only_reading`,
which is independent of the package. Other kinds of files and folders have tables of corruptions in `test_readers`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from corruption import NoOneReading, corrupted, corrupted_bytes, fewer_inputs, inputs, law_of, only_reading, same
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.base import storage
from lever_pipe.base.model_folders import GENERATION, end_tokens
from lever_pipe.base.records import Example, Manifest, RlGroup, SubsetScore
from lever_pipe.intention.codecs import word
from lever_pipe.intention.sources import intentiongym
from lever_pipe.intention.sources.protocol import RawFiles

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr", "ignore:Image size")


class Reader(NamedTuple):
    """A reader of a file: the file's name, its corrupted content, the call, and a comparison with a content."""

    file: str
    corruptions: st.SearchStrategy[bytes]
    read: Callable[[Path], Any]
    agrees: Callable[[Any, bytes], bool]


TRAJECTORY = {
    "query_id": 3, "pointer": [1, 0], "pointer_global": [8, 7], "gen_method": "beam", "beam_rank": 0,
    "beam_score": -0.5, "logprob_score": None, "temperature": 1.0, "similarity_score": None,
    "vqa_raw_generation": "rot\u00e9", "vqa_pred_answer": "red", "vqa_correct": 1, "vqa_acc_score": 0.6,
    "vqa_gt_prob": 0.25, "vqa_gt_logprob": None, "vqa_rel_token_f1": 0.5, "vqa_rel_edit_sim": 0.5,
    "vqa_rel_score": 0.5, "vqa_eval_mode": "vqa", "eval_split_used": "train", "eval_failed": False,
}  # fmt: skip
QUERY = {
    "query_id": 3, "question_id": 9, "image_id": 1, "question": "what?", "gt_answers_raw": ["red"],
    "gt_answers_norm": ["red"],
}  # fmt: skip
SUBSET = {"subset": "prefix", "accuracy": 51.25, "n_questions": 100, "n_distinct_prompts": 90}
DETAIL = {"description": "size", "importance": 2, "inquiry": "which size?", "options": ["s", "m"]}
ROWS: dict[Any, dict[str, Any]] = {
    Example: {
        "example_id": 0, "question_id": 10, "image_id": 1, "image": "a.jpg", "image_digest": "0" * 64,
        "question": "what?", "question_type": "one", "answers": ["red", "blue"], "answer": "red",
    },
    RlGroup: {"query": QUERY, "candidate_pool_ids": [7, 8], "pointer_candidates": [TRAJECTORY]},
    Manifest: {
        "stage": "a", "config": {"x": [1, 2.5, None], "y": {"z": True}}, "inputs": {"a": "0" * 64}, "code": "c",
        "commit": "0", "dirty": False, "versions": {"torch": "2"}, "device": "cpu", "threads": 1, "seconds": 0.5,
    },
}  # fmt: skip


def task(name: str) -> dict[str, Any]:
    details = [DETAIL, {**DETAIL, "importance": "3"}]
    return {"id": name, "category": "shop", "task": f"buy {name}", "missing_details": details}


def row_agrees(row: Any, content: bytes) -> bool:
    return same(row.model_dump(), only_reading(content))


def ends_agree(ends: tuple[int, ...], content: bytes) -> bool:
    named = only_reading(content).get("eos_token_id")
    return list(ends) == (named if isinstance(named, list) else [] if named is None else [named])


def splits(path: Path) -> RawFiles:
    others = [path.parent / f"{name}.json" for name in ("val", "test", "train")]
    return RawFiles((path,), *((other,) for other in others))


READERS: dict[str, Reader] = {
    **{
        f"row {model.__name__}": Reader(
            "row.json", corrupted(row), lambda path, model=model: storage.read_row(path, model), row_agrees
        )
        for model, row in ROWS.items()
    },
    "end tokens": Reader(
        GENERATION, corrupted({"eos_token_id": [151645, 151643]}), lambda path: end_tokens(path.parent), ends_agree,
    ),
    "vocabulary": Reader(
        word.FILE, corrupted(sorted({*word.GRAMMAR, "colour", "size"})), lambda path: word.load(path.parent),
        lambda codec, content: list(codec.words) == only_reading(content),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with everything as it should be."""
    folder = tmp_path_factory.mktemp("raw")
    for split in ("train", "val", "test"):
        (folder / f"{split}.json").write_text(json.dumps([task(split), task(f"{split} 2")]))
    return folder


@pytest.mark.parametrize("name", READERS)
@inputs
@given(data=st.data())
def test_what_is_read_is_what_stands_there(folder: Path, name: str, data: st.DataObject) -> None:
    reader = READERS[name]
    path, content = folder / reader.file, data.draw(reader.corruptions)
    path.write_bytes(content)
    taken, value = law_of(lambda: reader.read(path), names=path.name)
    if taken:
        assert reader.agrees(value, content)


@inputs
@given(content=corrupted({"a": [1, 2.5, "x", None, True], "b": {"c": "\u00e9"}}))
def test_json_is_refused_only_if_it_has_no_one_reading(folder: Path, content: bytes) -> None:
    path = folder / "a.json"
    path.write_bytes(content)
    taken, value = law_of(lambda: storage.read_json(path), names=str(path))
    try:
        truth = only_reading(content)
    except NoOneReading:
        assert not taken
    else:
        assert taken
        assert same(value, truth)


@inputs
@given(bad=corrupted(SUBSET).filter(lambda content: b"\n" not in content), before=st.integers(0, 3))
def test_a_problem_names_its_line(folder: Path, bad: bytes, before: int) -> None:
    whole, path = json.dumps(SUBSET).encode(), folder / "a.jsonl"
    path.write_bytes(b"\n".join([*[whole] * before, bad, whole]))
    taken, rows = law_of(lambda: storage.read_rows(path, SubsetScore), names=f"{path}:{before + 1}: ")
    if taken:
        assert len(rows) == before + 2
        assert same(rows[before].model_dump(), only_reading(bad))


@pytest.fixture(scope="module")
def rows_of_parquet(folder: Path) -> bytes:
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
def test_parquet_rows_name_tasks_with_details(folder: Path, rows_of_parquet: bytes, data: st.DataObject) -> None:
    path = folder / "corrupted.parquet"
    path.write_bytes(data.draw(corrupted_bytes(rows_of_parquet)))
    taken, found = law_of(lambda: intentiongym.read(None, splits(path)), names=str(path))
    if taken:
        assert {each.id for each in found.train} <= {"train", "train 2"}
