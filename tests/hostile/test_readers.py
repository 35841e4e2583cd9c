"""Nothing wrong gets in: real files are corrupted, and each is refused by name, changes nothing, or is listed.

`REFUSED` lists the refusals by reader, file and place; `TAKEN` lists the changes of a reading with their reasons. In
addition every file is cut, re-encoded and exchanged for its neighbors, and all of its tensors are changed.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from corruption import law_of
from PIL import Image
from safetensors.torch import load_file
from user_files import NAMES, FileReader, bytes_of, linked, put, read_world, write_weights

from lever_pipe.base.errors import DataError, LeverPipeError

logging.getLogger("transformers").setLevel(logging.CRITICAL)
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of libraries about broken files
Corruption = Callable[[Path], object]
ABSENT = object()
NAN, INF = float("nan"), float("inf")
NO_NUMBERS = (NAN, INF, -INF)


def twice(rows: Any) -> Any:
    return [*rows, rows[0]]


def with_answer(value: Any) -> Callable[[Any], Any]:
    return lambda rows: [{**row, "answer": value} for row in rows]


def with_rows(**values: Any) -> Callable[[Any], Any]:
    """Return what sets values of all selections of RL data."""

    def changed(document: Any) -> Any:
        for block in (block for key, block in document.items() if key != "_meta"):
            block["pointer_candidates"] = [{**row, **values} for row in block["pointer_candidates"]]
        return document

    return changed


ROW = "0.pointer_candidates.0"
DETAIL = "0.missing_details.0"
QUESTION, ANNOTATION = "questions.0", "annotations.0"
# Reader -> file -> dotted path of a value -> its replacements; a callable gets the old value.
REFUSED: dict[str, dict[str, dict[str, tuple[Any, ...]]]] = {
    "world": {
        "train_questions": {
            f"{QUESTION}.question": (" \t", 3, ABSENT), f"{QUESTION}.question_id": ("3",),
            f"{QUESTION}.image_id": (2**64, 1), QUESTION: (ABSENT,), "questions": ([], {}, twice, ABSENT),
        },
        "train_annotations": {
            f"{ANNOTATION}.answers": (with_answer(" "),), f"{ANNOTATION}.answers.0": (ABSENT,),
            f"{ANNOTATION}.answers.0.answer": (None,), f"{ANNOTATION}.answers.0.anser": ("x",),
            f"{ANNOTATION}.image_id": (1,), ANNOTATION: (ABSENT,), "annotations": (twice,),
        },
    },
    "rl_data": {
        "original.json": {
            "0.candidate_pool_ids": (list(range(20, 27)), ABSENT), "0.candidate_pool_ids.7": (0, 20, 64, -1),
            f"{ROW}.vqa_correct": (0, "1", ABSENT), "0.pointer_candidates.1.vqa_correct": (1,),
            f"{ROW}.vqa_gt_logprob": (0.5,), f"{ROW}.logprob_score": (9.8,),
            f"{ROW}.vqa_acc_score": (*NO_NUMBERS, 60.0, "1", ABSENT), f"{ROW}.vqa_gt_prob": (*NO_NUMBERS, 55.0, "1"),
            f"{ROW}.vqa_rel_score": NO_NUMBERS, f"{ROW}.beam_score": NO_NUMBERS, f"{ROW}.gen_method": (ABSENT,),
            f"{ROW}.pointer": (ABSENT, [8, 0], [-1, 0], [21, 20]), f"{ROW}.pointer_global": (ABSENT, [20, 21]),
            f"{ROW}.vqa_acc": (1,), f"{ROW}.eval_failed": ("no",),
            ROW: (lambda row: row | {"pointer": [1, 1], "pointer_global": [21, 21]},
                  lambda row: row | {"pointer": [1], "pointer_global": [21]}),
            "0.query.question": ("what else?",), "0.query.image_id": (1,), "0.query.gt_answers_raw": (["else"] * 10,),
            "0.query.gt_answers_raw.0": (ABSENT,), "0.query.question_id": (1,), "0.query.query_id": (5,),
            "_meta.fix_version": ("v1", "v2", "v4", 3, None),
            "": (list, with_rows(eval_failed=True), with_rows(vqa_eval_mode="fallback"),
                 lambda of: {"_meta": of["_meta"]}, lambda of: {"_meta": of["_meta"], "0": of["0"]},
                 lambda of: {**of, "0": of["1"], "1": of["0"]}),
        },
    },
    "lvlm": {
        "config.json": {
            "text_config.num_hidden_layers": (5, 2), "text_config.layer_types": (["sliding_attention"] * 3,),
            "text_config.vocab_size": (60,), "text_config.rope_parameters.rope_type": ("dynamic",),
            "text_config": (ABSENT,), "vision_config": (ABSENT,), "vision_config.depth": (3,),
            "vision_config.patch_size": (7,), "vision_config.out_hidden_size": (64,),
            "model_type": ("qwen2_vl", ABSENT), "image_token_id": (7,), "vision_start_token_id": (9,),
            "quantization_config": ({"quant_method": "bitsandbytes", "load_in_8bit": True},),
        },
        "preprocessor_config.json": {
            "patch_size": (7,), "merge_size": (1,), "temporal_patch_size": (1,), "image_mean": (ABSENT,),
        },
        "tokenizer_config.json": {"eos_token": (None, "<|endoftext|>"), "pad_token": (None,)},
        "tokenizer.json": {"model.type": ("Foo",)},
    },
    "clip": {
        "config.json": {
            "text_config.num_hidden_layers": (3, 1), "text_config.vocab_size": (60,), "text_config.eos_token_id": (7,),
            "vision_config.image_size": (28,), "vision_config.patch_size": (7,), "projection_dim": (32,),
            "model_type": ("siglip", ABSENT), "text_config": (ABSENT,),
        },
        "preprocessor_config.json": {
            "crop_size": ({"height": 28, "width": 28},), "size": ({"shortest_edge": 28},), "do_center_crop": (False,),
        },
        "tokenizer_config.json": {"pad_token": (None,)},
    },
    "tasks": {
        "train.json": {
            f"{DETAIL}.importance": (5, True, 1.5), "0.missing_details": ([],), "0.task": ("", "\ud800"),
            "0.category": (ABSENT,), f"{DETAIL}.options": ("s",),
            "": (lambda of: [], lambda of: [of[0], of[0]], lambda of: {"tasks": of}),
        },
    },
}  # fmt: skip
NAME_KEYS = ("world", "rl_data", "tasks")
"""Readers whose refusals name the key too."""
TAKEN: dict[str, dict[str, dict[str, tuple[Any, ...]]]] = {
    # The LVLM's own prompt refuses it, naming the question; other models have other tokens.
    "world": {"train_questions": {f"{QUESTION}.question": ("a <|im_end|> b?",)}},
    # `other_accuracies` counts the first, `duplicate_selections` the second, and the report the queries.
    "rl_data": {"original.json": {
        f"{ROW}.vqa_pred_answer": ("nothing",), "0.pointer_candidates": (twice,), "2": (ABSENT,),
    }},
    # These files alone define the number of heads, the size of images and the cut of words.
    "lvlm": {
        "config.json": {"vision_config.num_heads": (8,)}, "preprocessor_config.json": {"resample": (0,)},
        "tokenizer.json": {"pre_tokenizer": (None,)},
    },
    "clip": {"config.json": {"text_config.num_attention_heads": (8,)}},
}  # fmt: skip
"""Readings that may differ from the sound files', each for the reason above it."""
OF_TENSORS: dict[str, Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]] = {
    **{
        kind: lambda tensors, change=change: {name: change(tensor) for name, tensor in tensors.items()}  # type: ignore[misc]
        for kind, change in {
            "half": torch.Tensor.half, "bfloat16": torch.Tensor.bfloat16, "double": torch.Tensor.double,
            "int8": lambda t: t.to(torch.int8), "NaN": lambda t: t * NAN, "infinite": lambda t: t + INF,
            "zero": lambda t: t * 0, "huge": lambda t: t * 1e30, "doubled": lambda t: t * 2,
            "flat": lambda t: t.reshape(-1)[None], "a row fewer": lambda t: t[:-1].clone() if t.ndim > 1 else t,
            "rows reversed": lambda t: t.flip(0).contiguous() if t.ndim > 1 else t,
        }.items()
    },
    "one NaN": lambda tensors: _in_one_matrix(tensors, lambda t: t.view(-1)[:1].fill_(NAN)),
    "one infinity": lambda tensors: _in_one_matrix(tensors, lambda t: t.view(-1)[-1:].fill_(INF)),
    "a matrix of zeros": lambda tensors: _in_one_matrix(tensors, torch.Tensor.zero_),
    "one fewer": lambda tensors: dict(list(tensors.items())[1:]),
    "one more": lambda tensors: {**tensors, "x": torch.ones(1)},
    "prefixed": lambda tensors: {f"lever_lm.{name}": tensor for name, tensor in tensors.items()},
}  # fmt: skip
ANY_WEIGHTS = {"doubled", "rows reversed"}
TAKEN_TENSORS = {
    "lvlm": {"half", "bfloat16", "double", *ANY_WEIGHTS},  # rounded weights are weights, with answers of their own
    "clip": {"half", "bfloat16", "double", *ANY_WEIGHTS},
    "checkpoint": {"zero", "a matrix of zeros", "huge", *ANY_WEIGHTS},
    "embeddings": {"rows reversed"},  # vectors name no example; the manifest has the digest of the file
}
FRAMES = [Image.new("RGB", (8, 8), (40 * i, 0, 0)) for i in range(3)]
IMAGES: dict[str, bytes] = {
    "1 x 5000": bytes_of(Image.new("RGB", (1, 5000)), "PNG"),
    "35 megapixels": bytes_of(Image.new("L", (7000, 5000)), "JPEG"),
    **{f"mode {mode}": bytes_of(Image.new(mode, (9, 9)), kind)
       for mode, kind in (("F", "TIFF"), ("I", "TIFF"), ("I;16", "PNG"), ("LAB", "TIFF"))},
    **{f"animated {kind}": bytes_of(FRAMES[0], kind, save_all=True, append_images=FRAMES[1:])
       for kind in ("GIF", "PNG", "WEBP", "TIFF")},
    **{f"a {kind}": bytes_of(Image.new("RGB", (9, 9)), kind) for kind in ("EPS", "ICO", "PCX", "SGI", "TGA", "PDF")},
    "a header": bytes_of(FRAMES[0], "PNG")[:33],
}  # fmt: skip
LINES: dict[str, Callable[[list[str]], list[str]]] = {
    "another order": lambda rows: rows[::-1], "a row twice": lambda rows: [rows[0], *rows],
    "a row fewer": lambda rows: [rows[0], *rows[2:]], "no rows": lambda rows: [],
    "a blank line": lambda rows: [rows[0], "\n", *rows[1:]],
    "two rows a line": lambda rows: [rows[0].strip(), *rows[1:]],
}  # fmt: skip


def _in_one_matrix(tensors: dict[str, torch.Tensor], change: Callable[[torch.Tensor], object]) -> Any:
    change(max((tensors[name] for name in sorted(tensors) if tensors[name].ndim > 1), key=torch.Tensor.numel))
    return tensors


def overlap(folder: Path) -> None:
    """Make the train split the evaluation split."""
    for kind in ("questions", "annotations"):
        put(folder / f"eval_{kind}", (folder / f"train_{kind}").read_bytes())
    for path in (folder / "train_images").iterdir():
        put(folder / "eval_images" / path.name.replace("train", "val"), path.read_bytes())


def replaced(file: str, path: str, value: Any) -> Corruption:
    """Return the corruption that sets the value at a dotted path in a JSON file; a callable gets the old value."""

    def corruption(folder: Path) -> None:
        holder = whole = {"": json.loads((folder / file).read_text())}
        *outer, last = ["", *path.split(".")] if path else [""]
        for part in outer:
            holder = holder[int(part) if isinstance(holder, list) else part]
        last = int(last) if isinstance(holder, list) else last  # type: ignore[assignment]
        if value is ABSENT:
            del holder[last]
        else:
            holder[last] = value(holder[last]) if callable(value) else value
        put(folder / file, json.dumps(whole[""]))

    return corruption


def of_values(table: dict[str, dict[str, tuple[Any, ...]]]) -> Iterator[tuple[str, Corruption]]:
    for file, places in table.items():
        for path, values in places.items():
            for number, value in enumerate(values):
                yield f"{file}: {path} {number}", replaced(file, path, value)


def of_bytes(reader: FileReader) -> Iterator[tuple[str, Corruption]]:
    """Yield corruptions that need no knowledge of a format."""
    paths = [path for path in sorted(reader.folder.iterdir()) if path.is_file()]
    for path in paths:
        name, content = path.name, path.read_bytes()
        middle = len(content) // 2
        changes = {
            "empty": b"", "half": content[:middle], "without its last 40": content[:-40], "doubled": content * 2,
            "with a tail": content + b"x{", "of zeros": bytes(len(content)), "with a long header":
            struct.pack("<Q", 2**62) + content[8:], "with a bad letter": content[:middle] + b"\xff" + content[middle:],
            "without its middle": content[: middle - 20] + content[middle + 20 :], "as UTF-16":
            content[:9999].decode("latin-1").encode("utf-16"), "a page": b"<!DOCTYPE html><p>404</p>",
            "a pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n",
            **{other.name: other.read_bytes() for other in paths if other != path},
        }  # fmt: skip
        for kind, changed in changes.items():
            yield f"{name} is {kind}", lambda folder, name=name, changed=changed: put(folder / name, changed)  # type: ignore[misc]
        yield f"{name} gone", lambda folder, name=name: (folder / name).unlink()  # type: ignore[misc]


def of_formats(name: str, reader: FileReader) -> Iterator[tuple[str, bool, Corruption]]:
    """Yield corruptions of tensors, images and rows, and whether each must be refused."""
    for path in sorted(reader.folder.glob("*.safetensors")):
        for kind, change in OF_TENSORS.items():
            must = kind not in TAKEN_TENSORS[name]
            yield (
                f"{path.name} {kind}",
                must,
                lambda folder, path=path, change=change: write_weights(folder / path.name, change(load_file(path))),  # type: ignore[misc]
            )
    if name == "image":
        for kind, content in IMAGES.items():
            yield kind, True, lambda folder, content=content: put(folder / "image", content)  # type: ignore[misc]
        yield "a folder", True, lambda folder: ((folder / "image").unlink(), (folder / "image").mkdir())
    if name == "examples":
        for kind, of in LINES.items():
            rows = (reader.folder / "train.jsonl").read_text().splitlines(keepends=True)
            yield kind, True, lambda folder, text="".join(of(rows)): put(folder / "train.jsonl", text)  # type: ignore[misc]
    if name == "world":
        yield "the train split as evaluation", True, overlap
        first = min((reader.folder / "train_images").iterdir()).name
        for kind in ("1 x 5000", "mode F"):
            yield kind, True, lambda folder, kind=kind: put(folder / "train_images" / first, IMAGES[kind])  # type: ignore[misc]


def named(kind: str, error: object) -> bool:
    """Return whether a refusal names the key whose value was replaced, its query, or a text that is no JSON."""
    keys = [part for part in kind.partition(": ")[2].partition(" ")[0].split(".") if not part.isdigit()]
    others = re.search(r"query \d|JSON|examples|selections", str(error))
    return not keys or keys[-1].rstrip("s") in str(error) or others is not None


def same(one: Any, other: Any) -> bool:
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_wrong_is_refused_by_name(readers: dict[str, FileReader], tmp_path: Path, name: str) -> None:
    reader, complaints = readers[name], []

    def outcome(corruption: Corruption) -> tuple[bool, Any]:
        copy = linked(reader.folder, tmp_path / "copy")
        corruption(copy)
        try:
            return law_of(lambda: reader.read(copy), names=str(copy))
        finally:
            shutil.rmtree(copy)

    _, truth = outcome(lambda folder: None)
    cases = [(kind, True, change) for kind, change in of_values(REFUSED.get(name, {}))]
    cases += [(kind, False, change) for kind, change in of_values(TAKEN.get(name, {}))]
    cases += of_formats(name, reader)
    cases += [(kind, None, change) for kind, change in of_bytes(reader)]
    for kind, must, change in cases:
        try:
            taken, value = outcome(change)
        except Exception as error:  # noqa: BLE001 - a traceback is what is looked for
            complaints.append(f"{kind}: {type(error).__name__}: {error}"[:400])
            continue
        if must is taken:
            complaints.append(f"{kind}: {'taken' if taken else f'refused: {value}'}"[:400])
        elif must and name in NAME_KEYS and not named(kind, value):
            complaints.append(f"{kind}: names no key: {value}"[:400])
        elif must is None and taken and not same(value, truth):
            complaints.append(f"{kind}: taken, and it changes what is read")
    assert not complaints, "\n".join(complaints)


def test_evaluation_may_overlap_where_the_configuration_says_so(readers: dict[str, FileReader], tmp_path: Path) -> None:
    folder = linked(readers["world"].folder, tmp_path / "world")
    overlap(folder)
    with pytest.raises(DataError, match=r"found 8 .*question ids"):
        read_world(folder)
    read_world(folder, on_split_overlap="count")
    assert json.loads((folder / "eval.summary").read_text())["eval_questions_in_train"] == 8


# Unusual, valid files


def edit(file: str, **values: Any) -> Corruption:
    return replaced(file, "", lambda document: document | values)


def sharded(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    parts = {f"model-{i}.safetensors": dict(list(tensors.items())[i::2]) for i in (0, 1)}
    for name, part in parts.items():
        (folder / name).write_bytes((folder / "model.safetensors").read_bytes())
        write_weights(folder / name, part)
    places = {tensor: name for name, part in parts.items() for tensor in part}
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    put(folder / "model.safetensors.index.json", json.dumps(index))
    (folder / "model.safetensors").unlink()


def indented(folder: Path) -> None:
    for path in folder.glob("*.json"):
        put(path, json.dumps(json.loads(path.read_text()), indent=3))


def behind_links(folder: Path) -> None:
    for path in list(folder.iterdir()):
        path.rename(folder.parent / path.name)
        path.symlink_to(folder.parent / path.name)


def with_marks(folder: Path) -> None:
    """Write a byte order mark before each document, and blank lines after it."""
    for path in [path for path in folder.iterdir() if path.is_file() and path.read_bytes()[:1] in b"{["]:
        put(path, b"\xef\xbb\xbf" + path.read_bytes() + b"\r\n\n")


def in_another_order(folder: Path) -> None:
    for path in [*folder.glob("*_questions"), *folder.glob("*_annotations")]:
        document = json.loads(path.read_text())
        document[path.name.partition("_")[2]].sort(key=lambda entry: -entry["question_id"])
        put(path, json.dumps(document))


def with_an_image_of_both_splits(folder: Path) -> None:
    """Ask about an image in both splits: the questions differ."""
    first, other = (json.loads((folder / f"{s}_questions").read_text())["questions"][0] for s in ("train", "eval"))
    name = "COCO_{}2014_{:012d}.png"
    pixels = (folder / "train_images" / name.format("train", first["image_id"])).read_bytes()
    put(folder / "eval_images" / name.format("val", other["image_id"]), pixels)


LONGEST = {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
OF_MODELS: tuple[Corruption, ...] = (
    sharded,
    indented,
    behind_links,
    lambda folder: (folder / "README.md").write_text("# model"),
    edit("config.json", architectures=["Foo"], auto_map={"AutoConfig": "evil.C"}, dtype="float16"),
    edit("tokenizer_config.json", model_max_length=3),
    edit("tokenizer.json", truncation=LONGEST),
    lambda folder: put_tensors(folder, torch.float64),
)
LATER = {"pointer_pos": [900, 901], "aug_type": "all0", "aug_round": 2, "proxy_score": 0.5, "prompt_text": "x"}
UNUSUAL: dict[str, tuple[Corruption, ...]] = {
    "lvlm": OF_MODELS,
    "clip": OF_MODELS,
    "tasks": (with_marks,),
    "world": (with_marks, in_another_order, with_an_image_of_both_splits),
    "rl_data": (
        with_marks,
        replaced("original.json", "_meta", ABSENT),
        replaced("original.json", "_meta", {"fix_version": "v3", "note": "\u00e9", "created_at": None}),
        replaced("original.json", "", with_rows(**LATER)),
    ),
}


def put_tensors(folder: Path, dtype: torch.dtype) -> None:
    path = folder / "model.safetensors"
    write_weights(path, {name: tensor.to(dtype) for name, tensor in load_file(path).items()})


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_but_valid_is_read_as_usual(readers: dict[str, FileReader], tmp_path: Path, name: str) -> None:
    truth = readers[name].read(linked(readers[name].folder, tmp_path / "sound"))
    for number, change in enumerate(UNUSUAL[name]):
        folder = linked(readers[name].folder, tmp_path / str(number) / "a folder, \u00e9")
        change(folder)
        assert same(readers[name].read(folder), truth), number


def test_the_order_of_annotators_decides_nothing(readers: dict[str, FileReader], tmp_path: Path) -> None:
    def answers(folder: Path) -> list[list[str]]:
        rows = [json.loads(line)["query"] for line in readers["rl_data"].read(folder)[0].splitlines()]
        return [[*sorted(row.pop("gt_answers_raw")), json.dumps(row)] for row in rows]

    sound, other = (linked(readers["rl_data"].folder, tmp_path / name) for name in ("sound", "other"))
    replaced("original.json", "1.query.gt_answers_raw", lambda rows: rows[::-1])(other)
    assert answers(other) == answers(sound)


@pytest.mark.parametrize("name", ["world", "rl_data", "tasks"])
def test_a_byte_order_mark_and_blank_lines_change_nothing(
    readers: dict[str, FileReader], tmp_path: Path, name: str
) -> None:
    reader = readers[name]

    def corruption(folder: Path) -> None:
        for path in [path for path in folder.iterdir() if path.is_file()]:
            content = path.read_bytes()
            if content.startswith((b"{", b"[")) and not content.startswith(b'{"example_id"'):
                put(path, b"\xef\xbb\xbf" + content + b"\r\n\n")

    truth, _ = outcome(reader, lambda folder: None, tmp_path / "sound")
    value, message = outcome(reader, corruption, tmp_path / "copy")
    assert not message
    assert same(value, truth)


def outcome(reader: FileReader, corruption: Corruption, copy: Path) -> tuple[Any, str]:
    """Return the readings of corrupted files, or the messages that refuse them."""
    linked(reader.folder, copy)
    corruption(copy)
    try:
        return reader.read(copy), ""
    except LeverPipeError as error:
        parts = (error.expected, error.found, error.do)
        return None, str(error) if all(part.strip() for part in parts) else "TRACEBACK for lack of three parts"
    except Exception as error:  # noqa: BLE001 - a traceback is what is looked for
        return None, f"TRACEBACK {type(error).__name__}: {error}"[:300]
    finally:
        shutil.rmtree(copy)
