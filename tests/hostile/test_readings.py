"""Every reader, harmed documents: each is refused by name, or what is read is what stands there.

A reader of JSON gets harm to the structure of a sound document and to its bytes; its truth is `only_reading`, which
knows nothing of the package. Other kinds of files get harm to their bytes, and a truth of their own.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from harm import NoOneReading, fewer_inputs, harmed, harmed_bytes, inputs, law_of, only_reading, same
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.base import storage
from lever_pipe.base.checkpoints import load_tensors
from lever_pipe.base.records import Example, RlGroup, RunCard, SubsetScore
from lever_pipe.experiment.configuration import read_file
from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.intention.codecs import hf, word
from lever_pipe.intention.sources import json as task_files
from lever_pipe.intention.sources import parquet
from lever_pipe.intention.sources.protocol import RawFiles

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr", "ignore:Image size")


class Reader(NamedTuple):
    """What reads a file: the file's name, its harmed content, the call, and whether a value is what a content says."""

    file: str
    harms: st.SearchStrategy[bytes]
    read: Callable[[Path], Any]
    says: Callable[[Any, bytes], bool]


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
    RunCard: {
        "stage": "a", "config": {"x": [1, 2.5, None], "y": {"z": True}}, "inputs": {"a": "0" * 64}, "code": "c",
        "commit": "0", "dirty": False, "versions": {"torch": "2"}, "device": "cpu", "threads": 1, "seconds": 0.5,
    },
}  # fmt: skip


def task(name: str) -> dict[str, Any]:
    details = [DETAIL, {**DETAIL, "importance": "3"}]
    return {"id": name, "category": "shop", "task": f"buy {name}", "missing_details": details}


def says_row(row: Any, content: bytes) -> bool:
    return same(row.model_dump(), only_reading(content))


def says_tasks(splits: Any, content: bytes) -> bool:
    """An importance may stand as a digit."""
    records = only_reading(content)
    for record in records:
        keys = {key: record[key] for key in ("id", "category", "task")}
        found = next(each for each in splits.train if each.id == record["id"]).model_dump()
        details = [{key: detail[key] for key in DETAIL if key in detail} for detail in record["missing_details"]]
        details = [{**detail, "importance": int(detail["importance"])} for detail in details]
        assert same(found, {**keys, "missing_details": details})
    return len(records) == len(splits.train)


def says_experiment(experiment: Any, content: bytes) -> bool:
    try:
        return meant(experiment.model_dump(mode="json"), only_reading(content))
    except NoOneReading:  # YAML, which `test_configuration` mutates
        return True


def meant(result: Any, given: Any) -> bool:
    """Return whether a parsed value is the one that was written; a text may spell a number."""
    if isinstance(given, dict):
        return isinstance(result, dict) and all(key in result and meant(result[key], given[key]) for key in given)
    if isinstance(given, list):
        return isinstance(result, list) and len(given) == len(result) and all(map(meant, result, given))
    if isinstance(result, bool) or isinstance(given, bool):
        return result is given
    if isinstance(result, int | float) and isinstance(given, str):
        return float(given) == result
    return type(result) in (type(given), float, int) and bool(result == given)


def says_end_tokens(settings: Any, content: bytes) -> bool:
    truth = only_reading(content).get("eos_token_id")
    return same(settings.eos_token_id, truth)


HEADER = {
    "__metadata__": {"about": '{"epoch": 3, "stage": "a"}'},
    "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
    "b": {"dtype": "I64", "shape": [], "data_offsets": [16, 24]},
}
DATA = np.arange(4, dtype="<f4").tobytes() + np.int64(7).tobytes()
SIZES = {"F32": 4, "F64": 8, "I64": 8, "I32": 4, "U8": 1}


def file_of(header: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + DATA


SAFETENSORS = st.one_of(
    harmed(HEADER).map(file_of),
    harmed_bytes(file_of(json.dumps(HEADER).encode())),
    st.integers(0, 2**64 - 1).map(lambda length: file_of(json.dumps(HEADER).encode(), length)),
)


def tensors_in(content: bytes) -> dict[str, tuple[list[int], bytes]] | None:
    """Return shape and bytes by name, by the format's own words, or None where it forbids the file."""
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 + length:
        return None
    data, end, found = content[8 + length :], 0, {}
    try:
        entries = [(name, of) for name, of in only_reading(content[8 : 8 + length]).items() if name != "__metadata__"]
        for name, entry in sorted(entries, key=lambda item: [*map(int, item[1]["data_offsets"])]):
            begin, stop = entry["data_offsets"]
            size = math.prod(entry["shape"]) * SIZES[entry["dtype"]]
            counts = [*entry["shape"], begin, stop]
            if any(type(count) is not int or count < 0 for count in counts) or begin != end or stop - begin != size:
                return None
            end, found[name] = stop, (entry["shape"], data[begin:stop])
    except (NoOneReading, AttributeError, LookupError, TypeError, ValueError):
        return None
    return found if end == len(data) else None


def says_arrays(arrays: Any, content: bytes) -> bool:
    found = {name: (list(array.shape), np.asarray(array).tobytes()) for name, array in arrays.items()}
    return found == tensors_in(content)


def splits(path: Path) -> RawFiles:
    others = [path.parent / f"{name}.json" for name in ("val", "test", "train")]
    return RawFiles((path,), *((other,) for other in others))


READERS: dict[str, Reader] = {
    **{
        f"row {model.__name__}": Reader(
            "row.json", harmed(row), lambda path, model=model: storage.read_row(path, model), says_row
        )
        for model, row in ROWS.items()
    },
    "tasks": Reader(
        "tasks.json", harmed([task("a"), task("b")]), lambda path: task_files.read(None, splits(path)), says_tasks
    ),
    "end tokens": Reader(
        "end.json", harmed({"eos_token_id": [151645, 151643]}),
        lambda path: storage.read_row(path, hf.GenerationSettings), says_end_tokens,
    ),
    "vocabulary": Reader(
        word.FILE, harmed(sorted({*word.GRAMMAR, "colour", "size"})), lambda path: word.load(path.parent),
        lambda codec, content: list(codec.words) == only_reading(content),
    ),
    "checkpoint": Reader("a.safetensors", SAFETENSORS, lambda path: load_tensors(path)[0], says_arrays),
    "arrays": Reader("a.safetensors", SAFETENSORS, storage.read_arrays, says_arrays),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with everything as it should be."""
    folder = tmp_path_factory.mktemp("raw")
    for split in ("train", "val", "test"):
        (folder / f"{split}.json").write_text(json.dumps([task(split), task(f"{split} 2")]))
    return folder


def holds(folder: Path, reader: Reader, content: bytes) -> None:
    path = folder / reader.file
    path.write_bytes(content)
    taken, value = law_of(lambda: reader.read(path), names=path.name)
    if taken:
        assert reader.says(value, content)


@pytest.mark.parametrize("name", READERS)
@inputs
@given(data=st.data())
def test_what_is_read_is_what_stands_there(folder: Path, name: str, data: st.DataObject) -> None:
    holds(folder, READERS[name], data.draw(READERS[name].harms))


CONFIGURATION = Reader(
    "config.json",
    harmed(Experiment().model_dump(mode="json")),  # the defaults name every key there is
    lambda path: parse_experiment(read_file(path), source=str(path)),
    says_experiment,
)


@fewer_inputs
@given(content=CONFIGURATION.harms)
def test_an_experiment_is_what_the_configuration_says(folder: Path, content: bytes) -> None:
    holds(folder, CONFIGURATION, content)


@inputs
@given(content=harmed({"a": [1, 2.5, "x", None, True], "b": {"c": "\u00e9"}}))
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
@given(bad=harmed(SUBSET).filter(lambda content: b"\n" not in content), before=st.integers(0, 3))
def test_a_fault_names_its_line(folder: Path, bad: bytes, before: int) -> None:
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
    path = folder / "harmed.parquet"
    path.write_bytes(data.draw(harmed_bytes(rows_of_parquet)))
    taken, found = law_of(lambda: parquet.read(None, splits(path)), names=str(path))
    if taken:
        assert {each.id for each in found.train} <= {"train", "train 2"}
