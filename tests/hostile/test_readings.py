"""Every reader, harmed documents: each is refused by name, or what is read is what stands there.

A reader of JSON gets harm to the structure of a sound document and to its bytes; its truth is `only_reading`, which
knows nothing of the package. Other kinds of files get harm to their bytes, and a truth of their own.
"""

from __future__ import annotations

import hashlib
import io
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
from PIL import Image

from lever_pipe.base import images, storage
from lever_pipe.base.checkpoints import load_tensors
from lever_pipe.base.records import Cell, EpochMetrics, Example, RlGroup, RunCard, SubsetScore
from lever_pipe.experiment.configuration import read_file
from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.intention.codecs import hf, word
from lever_pipe.intention.records import EpisodeRow
from lever_pipe.intention.sources import json as task_files
from lever_pipe.intention.sources import parquet
from lever_pipe.intention.sources.protocol import RawFiles
from lever_pipe.lever import rl_data_files
from lever_pipe.lever.datasets import okvqa, vqav2
from lever_pipe.lever.datasets.protocol import ReadOptions, VqaFilePaths
from lever_pipe.lever.rl_data_files import PoolRule, import_groups
from lever_pipe.lvlms.protocol import ImageSource

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
POLICY = {"name": "preset~a/rce/seed~0/epoch~1", "stage": "rce", "preset": "a", "seed": 0, "epoch": 1}
SUBSET = {"subset": "prefix", "accuracy": 51.25, "n_questions": 100, "n_distinct_prompts": 90}
DETAIL = {"description": "size", "importance": 2, "inquiry": "which size?", "options": ["s", "m"]}
ROWS: dict[Any, dict[str, Any]] = {
    Example: {
        "example_id": 0, "question_id": 10, "image_id": 1, "image": "a.jpg", "image_digest": "0" * 64,
        "question": "what?", "question_type": "one", "answers": ["red", "blue"], "answer": "red",
    },
    RlGroup: {"query": QUERY, "candidate_pool_ids": [7, 8], "pointer_candidates": [TRAJECTORY]},
    EpochMetrics: {"policy": POLICY, "values": {"loss": 0.5, "steps": 3}},
    Cell: {"policy": POLICY, "samples": 100, "shots": 2, "subsets": [SUBSET]},
    RunCard: {
        "stage": "a", "config": {"x": [1, 2.5, None], "y": {"z": True}}, "inputs": {"a": "0" * 64}, "code": "c",
        "commit": "0", "dirty": False, "versions": {"torch": "2"}, "device": "cpu", "threads": 1, "seconds": 0.5,
    },
    EpisodeRow: {
        "step": 0, "split": "val", "mode": "greedy", "task_id": "t", "sample": 0, "rewards": [0.5, 0],
        "ceiling": 1.0, "end": "complete", "n_agent_tokens": 3,
    },
}  # fmt: skip
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
            "multiple_choice_answer": "red", "answers": [
                {"answer_id": n, "raw_answer": "Red", "answer_confidence": "yes", "answer": f"red{n % 2}"}
                for n in (1, 2, 3)
            ],
        }
        for i in IDS
    ],
}  # fmt: skip
OPTIONS = ReadOptions(image_name="{image_id}.png", n_answers=3)
ROW = {key: value for key, value in TRAJECTORY.items() if key != "query_id"}
OF_A = {key: ROW[key] for key in ("beam_rank", "beam_score", "gen_method", "temperature", "vqa_pred_answer")}
OF_A |= {"pointer": [7, 8], "logprob_score": -1.5, "vqa_correct": 1, "vqa_acc_score": 1.0}
TRAIN = [
    Example(
        example_id=i, question_id=100 + i, image_id=i, image=f"{i}.png", image_digest=str(i), question=f"question {i}?",
        question_type="one", answers=("red",), answer="red",
    )
    for i in range(10)
]  # fmt: skip


def task(name: str) -> dict[str, Any]:
    details = [DETAIL, {**DETAIL, "importance": "3"}]
    return {"id": name, "category": "shop", "task": f"buy {name}", "missing_details": details}


def says_row(row: Any, content: bytes) -> bool:
    return same(row.model_dump(), only_reading(content))


def says_examples(documents: dict[str, Any], result: Any) -> bool:
    """Return whether examples are what questions and annotations say."""
    asked = {entry["question_id"]: entry for entry in documents["questions"]["questions"]}
    answered = {entry["question_id"]: entry for entry in documents["annotations"]["annotations"]}
    assert len(asked) == len(documents["questions"]["questions"]) == len(answered)
    assert [example.question_id for example in result.examples] == sorted(asked)
    for example in result.examples:
        question, annotation = asked[example.question_id], answered[example.question_id]
        assert same([example.question, example.image_id], [question["question"], question["image_id"]])
        assert question["image_id"] == annotation["image_id"]
        assert same(example.answers, [answer["answer"] for answer in annotation["answers"]])
        assert len(example.answers) == OPTIONS.n_answers
        assert same(example.question_type, annotation.get("question_type", ""))
    return True


def of_questions(reader: Any, harmed_file: str) -> Reader:
    documents = {"questions": QUESTIONS, "annotations": ANNOTATIONS}

    def read(path: Path) -> Any:
        paths = {name: path.parent / f"{name}.json" for name in documents} | {harmed_file: path}
        return reader.read(VqaFilePaths(**paths, images=path.parent), OPTIONS)

    def says(result: Any, content: bytes) -> bool:
        return says_examples(documents | {harmed_file: only_reading(content)}, result)

    return Reader("harmed.json", harmed(documents[harmed_file]), read, says)


def kept(block: Any) -> list[Any]:
    rows = block["pointer_candidates"]
    failed = rl_data_files.FAILED_MODES
    return [row for row in rows if not row.get("eval_failed") and row.get("vqa_eval_mode") not in failed]


def says_rl_data(result: Any, content: bytes) -> bool:
    groups, report = result
    blocks = {key: block for key, block in only_reading(content).items() if key != "_meta"}
    assert len(blocks) == len(groups) + report["empty_queries"]
    for group in groups:
        block = blocks[str(group.query.query_id)]
        assert same(group.query.model_dump(), block["query"])
        assert same(group.candidate_pool_ids, block["candidate_pool_ids"])
        for trajectory, row in zip(group.pointer_candidates, kept(block), strict=True):
            stated = {key: value for key, value in row.items() if key not in rl_data_files.IGNORED_FIELDS}
            assert same(trajectory.model_dump(), stated)
    return True


def says_rl_data_without_pools(result: Any, content: bytes) -> bool:
    blocks = only_reading(content)
    for group in result[0]:
        stated = [row["pointer"] for row in kept(blocks[str(group.query.query_id)])]
        assert same([list(row.pointer_global) for row in group.pointer_candidates], stated)
        assert len(set(group.candidate_pool_ids)) == 5
    return True


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


def encoded(kind: str, mode: str = "RGB") -> bytes:
    stream = io.BytesIO()
    Image.linear_gradient("L").resize((24, 16)).convert(mode).save(stream, kind)
    return stream.getvalue()


def read_image(path: Path) -> Any:
    digest = images.digest_of(path)
    source = ImageSource({digest: path})
    shown = source.open(digest)
    assert (shown.mode, shown.size) == ("RGB", source.size(digest))
    return digest


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
    **{f"{r.__name__} {file}": of_questions(r, file) for r in (okvqa, vqav2) for file in ("questions", "annotations")},
    "rl data g": Reader(
        "rl.json",
        harmed({"_meta": {"fix_version": "v3"}, "3": {
            "query": QUERY, "candidate_pool_ids": [7, 8],
            "pointer_candidates": [ROW, {**ROW, "pointer": [0, 1], "pointer_global": [7, 8]}],
        }}),
        lambda path: import_groups(path, "g", TRAIN, PoolRule(size=2, seed=0, exclude_same_image=True)), says_rl_data,
    ),
    "rl data a": Reader(
        "rl.json", harmed({"3": {"pointer_candidates": [OF_A, {**OF_A, "pointer": [8, 9]}]}}),
        lambda path: import_groups(path, "a", TRAIN, PoolRule(size=5, seed=0, exclude_same_image=True)),
        says_rl_data_without_pools,
    ),
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
    **{
        f"image {kind} {mode}": Reader(
            "image", harmed_bytes(encoded(kind, mode)), read_image,
            lambda digest, content: digest == hashlib.sha256(content).hexdigest(),
        )
        for kind, mode in (("JPEG", "RGB"), ("PNG", "RGB"), ("GIF", "P"), ("PNG", "P"))
    },
}  # fmt: skip


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
