"""JSON and JSON-lines files: what is read is what stands there, and nothing else is taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bad_input import NoOneReading, harmed, inputs, law_of, only_reading, same
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.records import Cell, EpochMetrics, Example, RlGroup, RunCard
from lever_pipe.intention.codecs import hf, word
from lever_pipe.intention.records import EpisodeRow, Task

TRAJECTORY = {
    "query_id": 3, "pointer": [1, 0], "pointer_global": [8, 7], "gen_method": "beam", "beam_rank": 0,
    "beam_score": -0.5, "logprob_score": None, "temperature": 1.0, "similarity_score": None,
    "vqa_raw_generation": "rot\u00e9", "vqa_pred_answer": "red", "vqa_correct": 1, "vqa_acc_score": 0.6,
    "vqa_gt_prob": 0.25, "vqa_gt_logprob": None, "vqa_rel_token_f1": 0.5, "vqa_rel_edit_sim": 0.5,
    "vqa_rel_score": 0.5, "vqa_eval_mode": "vqa", "eval_split_used": "train", "eval_failed": False,
}  # fmt: skip
POLICY = {"name": "preset~a/rce/seed~0/epoch~1", "stage": "rce", "preset": "a", "seed": 0, "epoch": 1}
ROWS: dict[type[BaseModel], dict[str, Any]] = {
    Example: {
        "example_id": 0, "question_id": 10, "image_id": 1, "image": "a.jpg", "image_digest": "0" * 64,
        "question": "what?", "question_type": "one", "answers": ["red", "blue"], "answer": "red",
    },
    RlGroup: {
        "query": {
            "query_id": 3, "question_id": 9, "image_id": 1, "question": "what?",
            "gt_answers_raw": ["red"], "gt_answers_norm": ["red"],
        },
        "candidate_pool_ids": [7, 8],
        "pointer_candidates": [TRAJECTORY],
    },
    EpochMetrics: {"policy": POLICY, "values": {"loss": 0.5, "steps": 3}},
    Cell: {
        "policy": POLICY, "samples": 100, "shots": 2,
        "subsets": [{"subset": "prefix", "accuracy": 51.25, "n_questions": 100, "n_distinct_prompts": 90}],
    },
    RunCard: {
        "stage": "a", "config": {"x": [1, 2.5, None], "y": {"z": True}}, "inputs": {"a": "0" * 64}, "code": "c",
        "commit": "0", "dirty": False, "versions": {"torch": "2"}, "device": "cpu", "threads": 1, "seconds": 0.5,
    },
    Task: {
        "id": "t", "category": "c", "task": "do", "missing_details": [
            {"description": "d", "importance": 2, "inquiry": "which?", "options": ["a", "b"]},
        ],
    },
    EpisodeRow: {
        "step": 0, "split": "val", "mode": "greedy", "task_id": "t", "sample": 0, "rewards": [0.5, 0],
        "ceiling": 1.0, "end": "complete", "n_agent_tokens": 3,
    },
}  # fmt: skip


def path_of(factory: pytest.TempPathFactory, content: bytes) -> Path:
    path = factory.getbasetemp() / "fuzz.json"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("model", ROWS, ids=lambda model: model.__name__)
@inputs
@given(data=st.data())
def test_a_row_is_read_as_it_stands_or_refused(
    tmp_path_factory: pytest.TempPathFactory, model: type[BaseModel], data: st.DataObject
) -> None:
    content = data.draw(harmed(ROWS[model]))
    path = path_of(tmp_path_factory, content)
    taken, row = law_of(f"row {model.__name__}", lambda: storage.read_row(path, model), names=str(path))
    if taken:
        truth = only_reading(content)
        if model is Task:  # a choice of numbers takes 2.0 as the 2 that it equals
            for detail in truth["missing_details"]:
                assert detail["importance"] in (1, 2, 3)
                detail["importance"] = int(detail["importance"])
        assert same(row.model_dump(), truth)


@inputs
@given(data=st.data())
def test_rows_are_read_line_by_line_and_a_fault_names_its_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    good = storage.strict_json(b'{"subset": "prefix", "accuracy": 51.25, "n_questions": 3, "n_distinct_prompts": 2}')
    before, after = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 2))
    bad = data.draw(harmed(good).filter(lambda content: b"\n" not in content))
    whole = b'{"accuracy": 1.5, "n_distinct_prompts": 2, "n_questions": 3, "subset": "a"}'
    path = path_of(tmp_path_factory, b"\n".join([*[whole] * before, bad, *[whole] * after]))
    from lever_pipe.base.records import SubsetScore

    places = f"{path}:{before + 1}: " if after or bad else str(path)
    taken, rows = law_of("rows", lambda: storage.read_rows(path, SubsetScore), names=places)
    if taken and (after or bad):
        assert len(rows) == before + 1 + after
        assert same(rows[before].model_dump(), only_reading(bad))


@inputs
@given(content=harmed({"a": [1, 2.5, "x", None, True], "b": {"c": "\u00e9"}}))
def test_json_is_read_as_it_stands_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = path_of(tmp_path_factory, content)
    taken, value = law_of("json", lambda: storage.read_json(path), names=str(path))
    try:
        truth = only_reading(content)
    except NoOneReading:
        assert not taken
    else:
        assert taken
        assert same(value, truth)


@inputs
@given(content=harmed({"eos_token_id": [151645, 151643]}))
def test_end_tokens_are_whole_numbers(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = path_of(tmp_path_factory, content)
    taken, found = law_of("generation settings", lambda: storage.read_row(path, hf.GenerationSettings), names=str(path))
    if taken:
        truth = only_reading(content).get("eos_token_id")
        assert found.eos_token_id == (tuple(truth) if isinstance(truth, list) else truth)
        assert not isinstance(truth, bool)


@inputs
@given(content=harmed(sorted({*word.GRAMMAR, "colour", "size"})))
def test_a_vocabulary_is_distinct_words(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / word.FILE).write_bytes(content)
    taken, codec = law_of("vocabulary", lambda: word.load(folder), names=str(folder / word.FILE))
    if taken:
        assert list(codec.words) == only_reading(content)


@pytest.mark.parametrize("read", [storage.read_json, lambda path: storage.read_rows(path, Cell)])
def test_what_is_no_file_is_told(tmp_path: Path, read: Any) -> None:
    with pytest.raises(RecordError, match=r"expected a file that can be read; found Is a directory"):
        read(tmp_path)
    with pytest.raises(RecordError, match=r"expected a file; found none"):
        read(tmp_path / "none")
