"""Nothing wrong gets in: real files are corrupted, and each is refused by name, changes nothing, or is listed.

`CORRUPTIONS` maps a reader to the required messages by corruption; `ACCEPTED` lists the readings that may differ, and
why. In addition every file of every reader is cut, re-encoded, mixed with noise and exchanged for each of the others.
"""

from __future__ import annotations

import io
import json
import logging
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from user_files import FileReader, linked, put, read_world, write_weights

from lever_pipe.base.errors import DataError, LeverPipeError

logging.getLogger("transformers").setLevel(logging.CRITICAL)
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of libraries about broken files
Corruption = Callable[[Path], object]
ABSENT = object()
NAN, INF = float("nan"), float("inf")


def at(path: str, value: Any, file: str) -> Corruption:
    """Return the corruption that sets the value at a dotted path in a JSON file; a callable gets the old value."""

    def corruption(folder: Path) -> None:
        document = json.loads((folder / file).read_text())
        *outer, last = [int(part) if part.isdigit() and isinstance(part, str) else part for part in path.split(".")]
        holder = document
        for part in outer:
            holder = holder[part] if isinstance(holder, list) else holder[str(part)]
        last = last if isinstance(holder, list) else str(last)
        if value is ABSENT:
            del holder[last]
        else:
            holder[last] = value(holder[last]) if callable(value) else value
        put(folder / file, json.dumps(document))

    return corruption


def whole(change: Callable[[Any], Any], file: str) -> Corruption:
    """Return the corruption that changes a whole JSON document."""
    return lambda folder: put(folder / file, json.dumps(change(json.loads((folder / file).read_text()))))


def weights(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], file: str) -> Corruption:
    return lambda folder: write_weights(folder / file, change(load_file(folder / file)))


def one(change: Callable[[torch.Tensor], object], file: str, *, index: int = 0) -> Corruption:
    """Return the corruption that changes one matrix in place."""

    def corrupted(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        name = [name for name in sorted(tensors) if tensors[name].ndim > 1][index]
        change(tensors[name])
        return tensors

    return weights(corrupted, file)


def each(change: Callable[[torch.Tensor], torch.Tensor], file: str) -> Corruption:
    return weights(lambda tensors: {name: change(tensor) for name, tensor in tensors.items()}, file)


def files(*names: str) -> Corruption:
    """Return the corruption that exchanges a file for another of the same folder."""
    return lambda folder: put(folder / names[0], (folder / names[1]).read_bytes())


def encoded(image: Image.Image, kind: str, **options: Any) -> Corruption:
    def corruption(folder: Path) -> None:
        stream = io.BytesIO()
        image.save(stream, kind, **options)
        put(folder / "image", stream.getvalue())

    return corruption


TRAIN_A, TRAIN_Q, EVAL_Q = "train_annotations", "train_questions", "eval_questions"
FRAMES = [Image.new("RGB", (8, 8), (40 * i, 0, 0)) for i in range(3)]


def answers(value: Any) -> Corruption:
    return at("annotations.0.answers", lambda rows: [{**row, "answer": value} for row in rows], TRAIN_A)


def rl(path: str, value: Any) -> Corruption:
    return at(path, value, "original.json")


def row(key: str, value: Any) -> Corruption:
    return rl(f"0.pointer_candidates.0.{key}", value)


def every_row(**values: Any) -> Corruption:
    def changed(document: Any) -> Any:
        for key, block in document.items():
            if key != "_meta":
                block["pointer_candidates"] = [{**each, **values} for each in block["pointer_candidates"]]
        return document

    return whole(changed, "original.json")


def lines(change: Callable[[list[str]], list[str]], file: str) -> Corruption:
    return lambda folder: put(folder / file, "".join(change((folder / file).read_text().splitlines(keepends=True))))


def config(path: str, value: Any) -> Corruption:
    return at(path, value, "config.json")


def pixels(path: str, value: Any) -> Corruption:
    return at(path, value, "preprocessor_config.json")


def array(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Corruption:
    return weights(change, "embeddings.safetensors")


def overlap(folder: Path) -> None:
    """Make the train split the evaluation split."""
    for kind in ("questions", "annotations"):
        put(folder / f"eval_{kind}", (folder / f"train_{kind}").read_bytes())
    for path in (folder / "train_images").iterdir():
        put(folder / "eval_images" / path.name.replace("train", "val"), path.read_bytes())


MODEL = "model.safetensors"
SELECTOR, OPTIMISER = "selector.safetensors", "optimiser.safetensors"
TASKS = "train.json"
OF_WEIGHTS = (
    ("a NaN", one(lambda t: t.view(-1)[:1].fill_(NAN), MODEL), "not finite: "),
    ("an infinity", one(lambda t: t.view(-1)[:1].fill_(INF), MODEL, index=3), "not finite: "),
    ("a matrix of zeros", one(torch.Tensor.zero_, MODEL, index=5), "nothing but 0: "),
    ("a tensor gone", weights(lambda t: dict(list(t.items())[1:]), MODEL), "missing_keys"),
    ("a tensor more", weights(lambda t: {**t, "x": torch.ones(1)}, MODEL), "unexpected_keys: x"),
)
CORRUPTIONS: dict[str, list[tuple[str, Corruption, str]]] = {
    "world": [
        ("blank answers", answers(" "), "blank answers only: 1"),
        ("blank question", at("questions.0.question", " \t", TRAIN_Q), "blank question in train_questions: 1"),
        ("no question", at("questions.0.question", ABSENT, TRAIN_Q), "missing key: 1 (questions[0].question)"),
        ("question of a number", at("questions.0.question", 3, TRAIN_Q), "questions[0].question"),
        ("id of a text", at("questions.0.question_id", "3", TRAIN_Q), "questions[0].question_id"),
        ("id beyond 64 bits", at("questions.0.image_id", 2**64, TRAIN_Q), "questions[0].image_id"),
        ("entry twice", at("questions", lambda rows: [*rows, rows[0]], TRAIN_Q), "duplicate question id"),
        ("annotation twice", at("annotations", lambda rows: [*rows, rows[0]], TRAIN_A), "duplicate question id"),
        ("annotation gone", at("annotations.0", ABSENT, TRAIN_A), "question without annotation: 1"),
        ("question gone", at("questions.0", ABSENT, TRAIN_Q), "annotation without question: 1"),
        ("another image", at("annotations.0.image_id", 1, TRAIN_A), "image_id differs"),
        ("image that is not there", at("questions.0.image_id", 1, TRAIN_Q), "missing image in"),
        ("nine answers", at("annotations.0.answers.0", ABSENT, TRAIN_A), "wrong answer count, expected 10"),
        ("answer of null", at("annotations.0.answers.0.answer", None, TRAIN_A), "answers[0].answer"),
        ("unknown key", at("annotations.0.answers.0.anser", "x", TRAIN_A), "unknown key: 1"),
        ("no entries", at("questions", [], TRAIN_Q), "at least 1 item"),
        ("entries as an object", at("questions", {}, TRAIN_Q), "valid list: 1 (questions)"),
        ("files exchanged", files(TRAIN_Q, TRAIN_A), "missing key: 1 (questions)"),
        ("questions of the other split", files(TRAIN_Q, EVAL_Q), "question without annotation"),
        ("evaluation is train", overlap, "set data.on_split_overlap"),
        ("control token", at("questions.0.question", "a <|im_end|> b?", TRAIN_Q), "ACCEPTED"),
        ("image of 1 x 5000", lambda folder: _first_image(folder, Image.new("RGB", (1, 5000))), "more than 200 times"),
        ("float image", lambda folder: _first_image(folder, Image.new("F", (9, 9)), "TIFF"), "pixels of mode F"),
    ],
    "image": [
        ("1 x 5000", encoded(Image.new("RGB", (1, 5000)), "PNG"), "one side more than 200 times the other"),
        ("35 megapixels", encoded(Image.new("L", (7000, 5000)), "JPEG"), "more than 33,554,432 pixels"),
        ("float", encoded(Image.new("F", (9, 9), 0.5), "TIFF"), "pixels of mode F"),
        ("32 bits", encoded(Image.new("I", (9, 9), 70_000), "TIFF"), "pixels of mode I"),
        ("16 bits", encoded(Image.new("I;16", (9, 9)), "PNG"), "pixels of mode I;16"),
        ("Lab", encoded(Image.new("LAB", (9, 9)), "TIFF"), "pixels of mode LAB"),
        *((f"animated {kind}", encoded(FRAMES[0], kind, save_all=True, append_images=FRAMES[1:]), "several frames")
          for kind in ("GIF", "PNG", "WEBP", "TIFF")),
        *((f"{kind} is no format that is taken", encoded(Image.new("RGB", (9, 9)), kind), "does not decode")
          for kind in ("EPS", "ICO", "PCX", "SGI", "TGA", "PDF")),
        ("text", lambda folder: put(folder / "image", "no image"), "does not decode"),
        ("nothing", lambda folder: put(folder / "image", b""), "does not decode"),
        ("a header alone", lambda folder: put(folder / "image", (folder / "image").read_bytes()[:33]), "decode"),
        ("a folder", lambda folder: ((folder / "image").unlink(), (folder / "image").mkdir()), "Is a directory"),
    ],
    "rl_data": [
        ("pools of half the size", rl("0.candidate_pool_ids", list(range(20, 27))), "pools.size is 8"),
        ("incorrect with accuracy", row("vqa_correct", 0), "vqa_correct is 0 and vqa_acc_score 1.0"),
        ("correct without", rl("0.pointer_candidates.1.vqa_correct", 1), "vqa_correct is 1 and vqa_acc_score 0.0"),
        ("positive log-probability", row("vqa_gt_logprob", 0.5), "vqa_gt_logprob"),
        ("positive score", row("logprob_score", 9.8), "logprob_score"),
        ("probability in percent", row("vqa_gt_prob", 55.0), "vqa_gt_prob is no probability"),
        ("accuracy in percent", row("vqa_acc_score", 60.0), "vqa_acc_score"),
        *((f"{key} {value}", row(key, value), "finite number") for value in (NAN, INF, -INF)
          for key in ("vqa_acc_score", "vqa_gt_prob", "vqa_rel_score", "beam_score")),
        *((f"{key} as text", row(key, "1"), key) for key in ("vqa_acc_score", "vqa_correct", "vqa_gt_prob")),
        *((f"no {key}", row(key, ABSENT), key) for key in ("pointer", "vqa_correct", "vqa_acc_score", "gen_method")),
        ("no pointer_global", row("pointer_global", ABSENT), "pointer_global': missing"),
        ("unknown key", row("vqa_acc", 1), "unknown key"),
        ("another question", rl("0.query.question", "what else?"), "query 0: question "),
        ("another image", rl("0.query.image_id", 1), "query 0: image_id "),
        ("other answers", rl("0.query.gt_answers_raw", ["else"] * 10), "query 0: gt_answers_raw "),
        ("nine answers", rl("0.query.gt_answers_raw.0", ABSENT), "query 0: gt_answers_raw "),
        ("another question id", rl("0.query.question_id", 1), "query 0: question_id "),
        ("another query id", rl("0.query.query_id", 5), "query.query_id is 5"),
        *((f"version {version}", rl("_meta.fix_version", version), "expected _meta.fix_version v3")
          for version in ("v1", "v2", "v4", 3, None)),
        ("the query in its pool", rl("0.candidate_pool_ids.7", 0), "holds the query itself"),
        ("a candidate twice", rl("0.candidate_pool_ids.7", 20), "repeats 20"),
        ("a candidate beyond the split", rl("0.candidate_pool_ids.7", 64), "no train example 64"),
        ("a negative candidate", rl("0.candidate_pool_ids.7", -1), "no train example -1"),
        ("a position beyond the pool", row("pointer", [8, 0]), "must lie in 0..7"),
        ("a negative position", row("pointer", [-1, 0]), "must lie in 0..7"),
        ("a global pointer", row("pointer", [21, 20]), "must lie in 0..7"),
        ("another global pointer", row("pointer_global", [20, 21]), "differs from pointer_global"),
        ("a demonstration twice", whole(lambda d: _both(d, [1, 1], [21, 21]), "original.json"), "repeats: [1, 1]"),
        ("one shot among two", whole(lambda d: _both(d, [1], [21]), "original.json"), "selections of several lengths"),
        ("no query", whole(lambda d: {"_meta": d["_meta"]}, "original.json"), "at least 2 queries"),
        ("one query", whole(lambda d: {"_meta": d["_meta"], "0": d["0"]}, "original.json"), "at least 2 queries"),
        ("all failed", every_row(eval_failed=True), "3 whose rows have all failed"),
        ("all fell back", every_row(vqa_eval_mode="fallback"), "3 whose rows have all failed"),
        ("a list", whole(lambda d: list(d), "original.json"), "a JSON list"),
        ("no pools", rl("0.candidate_pool_ids", ABSENT), "candidate_pool_ids': missing"),
        ("failed as a text", row("eval_failed", "no"), "should be a valid boolean"),
        ("exchanged queries", whole(lambda d: {**d, "0": d["1"], "1": d["0"]}, "original.json"), "query.query_id"),
        ("an answer of another accuracy", row("vqa_pred_answer", "nothing"), "ACCEPTED"),
        ("a row twice", rl("0.pointer_candidates", lambda rows: [*rows, rows[0]]), "ACCEPTED"),
        ("a query fewer", rl("2", ABSENT), "ACCEPTED"),
    ],
    "lvlm": [
        *((f"{key} {value}", config(key, value), "") for key, values in {
            "text_config.num_hidden_layers": (5, 2), "text_config.layer_types": (["sliding_attention"] * 3,),
            "text_config.vocab_size": (60,), "text_config.rope_parameters.rope_type": ("dynamic",),
            "text_config": (ABSENT,), "vision_config": (ABSENT,), "vision_config.depth": (3,),
            "vision_config.patch_size": (7,), "vision_config.out_hidden_size": (64,),
            "model_type": ("qwen2_vl", ABSENT), "image_token_id": (7,), "vision_start_token_id": (9,),
            "quantization_config": ({"quant_method": "bitsandbytes", "load_in_8bit": True},),
        }.items() for value in values),
        *((f"{key} {value}", pixels(key, value), "preprocessor_config.json")
          for key, value in (("patch_size", 7), ("merge_size", 1), ("temporal_patch_size", 1), ("image_mean", ABSENT))),
        ("no eos", at("eos_token", None, "tokenizer_config.json"), "turns ending in <|im_end|>"),
        ("another eos", at("eos_token", "<|endoftext|>", "tokenizer_config.json"), "turns ending in <|im_end|>"),
        ("no pad", at("pad_token", None, "tokenizer_config.json"), "no pad_token"),
        ("another tokenizer model", at("model.type", "Foo", "tokenizer.json"), "expected a readable tokenizer"),
        *OF_WEIGHTS,
        ("weights out of range", each(lambda t: t * 1e30, MODEL), "gives finite log-probabilities"),
        ("a tensor cut", weights(lambda t: {k: v[:3] if "qkv.bias" in k else v for k, v in t.items()}, MODEL),
         "mismatched_keys"),
        ("vision num_heads 8", config("vision_config.num_heads", 8), "ACCEPTED"),
        ("another filter", pixels("resample", 0), "ACCEPTED"),
        ("lower case", at("pre_tokenizer", None, "tokenizer.json"), "ACCEPTED"),
    ],
    "clip": [
        *((f"{key} {value}", config(key, value), "") for key, values in {
            "text_config.num_hidden_layers": (3, 1), "text_config.vocab_size": (60,),
            "text_config.eos_token_id": (7,), "vision_config.image_size": (28,), "vision_config.patch_size": (7,),
            "projection_dim": (32,), "model_type": ("siglip", ABSENT), "text_config": (ABSENT,),
        }.items() for value in values),
        ("crop", pixels("crop_size", {"height": 28, "width": 28}), "for 56 pixels"),
        ("size below the crop", pixels("size", {"shortest_edge": 28}), "for 56 pixels"),
        ("no crop", pixels("do_center_crop", False), "for 56 pixels"),
        ("no pad", at("pad_token", None, "tokenizer_config.json"), "no pad_token"),
        *OF_WEIGHTS,
        ("weights out of range", each(lambda t: t * 1e30, MODEL), "gives finite vectors"),
        ("text heads 8", config("text_config.num_attention_heads", 8), "ACCEPTED"),
    ],
    "checkpoint": [
        *((f"{name} {file}", each(change, file), words) for file in (SELECTOR, OPTIMISER) for name, change, words in (
            ("fp16", torch.Tensor.half, "is torch.float16"),
            ("bf16", torch.Tensor.bfloat16, "is torch.bfloat16"),
            ("int8", lambda t: t.to(torch.int8), "is torch.int8"),
            ("NaN", lambda t: t * NAN, "is not finite"), ("infinity", lambda t: t + INF, "is not finite"),
            ("flat", lambda t: t.reshape(-1)[None], "expected torch."),
        )),
        *((f"a tensor less in {file}", weights(lambda t: dict(list(t.items())[1:]), file), "missing ")
          for file in (SELECTOR, OPTIMISER)),
        *((f"a tensor more in {file}", weights(lambda t: {**t, "x": torch.ones(1)}, file), "extra x")
          for file in (SELECTOR,)),
        ("prefixed names", weights(lambda t: {f"lever_lm.{k}": v for k, v in t.items()}, SELECTOR), "missing "),
        ("exchanged", files(SELECTOR, OPTIMISER), "extra kl_beta"),
    ],
    "embeddings": [
        ("fp16", weights(lambda t: {k: v.half() for k, v in t.items()}, "embeddings.safetensors"),
         "float16"),
        ("float64", array(lambda t: {k: v.double() for k, v in t.items()}), "float64"),
        ("NaN", array(lambda t: {k: v * NAN for k, v in t.items()}), "expected finite numbers"),
        ("not of length 1", array(lambda t: {k: 2 * v for k, v in t.items()}), "another length than 1"),
        ("zeros", array(lambda t: {k: 0 * v for k, v in t.items()}), "another length than 1"),
        ("a row fewer", array(lambda t: {k: v[:-1].clone() for k, v in t.items()}), "for 5 examples"),
        ("one array fewer", array(lambda t: dict(list(t.items())[1:])), "the arrays"),
        ("flat", array(lambda t: {k: v.reshape(-1) for k, v in t.items()}), "for 5 examples"),
        ("another width", array(lambda t: {k: _unit(v[:, :3]) if "image" in k else v for k, v in t.items()}),
         "one width"),
        ("rows in another order", array(lambda t: {k: v.flip(0).contiguous() for k, v in t.items()}), "ACCEPTED"),
    ],
    "examples": [
        ("another order", lines(lambda rows: rows[::-1], "train.jsonl"), "expected example_id 0"),
        ("a row twice", lines(lambda rows: [rows[0], *rows], "train.jsonl"), "train.jsonl:2: expected example_id 1"),
        ("a row fewer", lines(lambda rows: [rows[0], *rows[2:]], "train.jsonl"), "expected example_id 1"),
        ("no rows", lines(lambda rows: [], "train.jsonl"), "expected examples; found none"),
        ("a blank line", lines(lambda rows: [rows[0], "\n", *rows[1:]], "train.jsonl"), "train.jsonl:2"),
        ("two rows a line", lines(lambda rows: [rows[0].strip(), *rows[1:]], "train.jsonl"), "train.jsonl:1"),
    ],
    "ledger": [],  # `test_readings`
    "tasks": [
        ("an id twice", whole(lambda tasks: [tasks[0], tasks[0]], TASKS), "expected each id once"),
        ("importance 5", at("0.missing_details.0.importance", 5, TASKS), "importance': Input should be 1, 2"),
        ("importance true", at("0.missing_details.0.importance", True, TASKS), "must be 1, 2 or 3"),
        ("importance 1.5", at("0.missing_details.0.importance", 1.5, TASKS), "importance': Input should be 1, 2"),
        ("no details", at("0.missing_details", [], TASKS), "missing_details': Tuple should have at least 1 item"),
        ("no request", at("0.task", "", TASKS), "task': String should have at least 1 character"),
        ("no category", at("0.category", ABSENT, TASKS), "category': missing"),
        ("options as a text", at("0.missing_details.0.options", "s", TASKS), "options': Input should be a valid"),
        ("half a character", lambda folder: put(folder / TASKS, (folder / TASKS).read_text().replace("buy", "\\ud800")),
         "Invalid JSON"),
        ("validation is train", files("val.json", TASKS), "expected no task of"),
        ("no tasks", whole(lambda tasks: [], TASKS), "expected tasks"),
        ("test is train", files("test.json", TASKS), "only tasks of the train and val files"),
        ("an object", whole(lambda tasks: {"tasks": tasks}, TASKS), "Input should be a valid array"),
    ],
}  # fmt: skip
FLIPPED = "with a flipped bit"
"""Acceptable: no format limits its numbers; manifests and digests detect a changed file."""
ACCEPTED = {
    ("world", "control token"): "the LVLM's own prompt refuses it, naming the question; other models have other tokens",
    ("rl_data", "an answer of another accuracy"): "other_accuracies counts it: original tools score in several ways",
    ("rl_data", "a row twice"): "duplicate_selections counts it; the original data hold such rows",
    ("rl_data", "a query fewer"): "which queries RL data hold is their maker's choice; the report counts them",
    ("lvlm", "vision num_heads 8"): "config.json alone states how many heads share a width; the model's digest differs",
    ("lvlm", "another filter"): "preprocessor_config.json alone states how images are resized; the digest differs",
    ("lvlm", "lower case"): "tokenizer.json alone states how words are cut; the model's digest differs",
    ("clip", "text heads 8"): "as for the LVLM",
    ("embeddings", "rows in another order"): "vectors name no example; manifests tell that the file was exchanged",
}
"""Readings that may differ from the sound files' readings, and why; every listed reading must be accepted."""


def _first_image(folder: Path, image: Image.Image, kind: str = "PNG") -> None:
    stream = io.BytesIO()
    image.save(stream, kind)
    put(min((folder / "train_images").iterdir()), stream.getvalue())


def _both(document: Any, pointer: list[int], ids: list[int]) -> Any:
    document["0"]["pointer_candidates"][0] |= {"pointer": pointer, "pointer_global": ids}
    return document


def _unit(rows: torch.Tensor) -> torch.Tensor:
    return (rows / rows.norm(dim=1, keepdim=True)).contiguous()


def of_every_file(reader: FileReader) -> Iterator[tuple[str, Corruption]]:
    """Yield corruptions that need no knowledge of a format."""
    paths = [path for path in sorted(reader.folder.iterdir()) if path.is_file()]
    for path in paths:
        name, content = path.name, path.read_bytes()
        middle = len(content) // 2
        changes = {
            "emptied": b"", "cut to a byte": content[:1], "halved": content[:middle], "without its last byte":
            content[:-1], "without its last 40": content[:-40], "doubled": content * 2, "with a tail": content + b"x{",
            "with a mark": b"\xef\xbb\xbf" + content, "of zeros": bytes(len(content)), "with a NUL":
            content[:middle] + b"\0" + content[middle:], "without its middle": content[:middle - 20] +
            content[middle + 20:], "reversed": content[::-1], "with a bad letter":
            content[:middle] + b"\xff" + content[middle:], "with a flipped bit":
            content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1:],
            "with a long header": struct.pack("<Q", 2**62) + content[8:], "as UTF-16":
            content[:9999].decode("latin-1").encode("utf-16"), "as a page": b"<!DOCTYPE html><p>404</p>",
            "as a pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n",
        }  # fmt: skip
        for kind, changed in changes.items():
            yield f"{name} {kind}", lambda folder, name=name, changed=changed: put(folder / name, changed)  # type: ignore[misc]
        yield f"{name} gone", lambda folder, name=name: (folder / name).unlink()  # type: ignore[misc]
        for other in paths:
            if other != path:
                yield f"{name} is {other.name}", files(name, other.name)


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


def same(one: Any, other: Any) -> bool:
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_what_is_wrong_is_refused_by_name(readers: dict[str, FileReader], tmp_path: Path, name: str) -> None:
    reader, complaints = readers[name], []
    truth, message = outcome(reader, lambda folder: None, tmp_path / "sound")
    assert not message
    blind = [(kind, corruption, "") for kind, corruption in of_every_file(reader)]
    for kind, corruption, words in (*CORRUPTIONS[name], *blind):
        value, message = outcome(reader, corruption, tmp_path / "copy")
        accepted = (name, kind) in ACCEPTED or kind.endswith(FLIPPED)
        if "TRACEBACK" in message:
            complaints.append(f"{kind}: {message}")
        elif message and ((name, kind) in ACCEPTED or words not in message or str(tmp_path) not in message):
            complaints.append(f"{kind}: said {message[:400]}, not {words!r} of {tmp_path}")
        elif not message and not accepted and (words or not same(value, truth)):
            complaints.append(f"{kind}: taken, and it changes what is read")
    assert not complaints, "\n".join(complaints)


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


def test_evaluation_may_overlap_where_the_configuration_says_so(readers: dict[str, FileReader], tmp_path: Path) -> None:
    folder = linked(readers["world"].folder, tmp_path / "world")
    overlap(folder)
    with pytest.raises(DataError, match=r"found 8 that are \(question ids .*, \.\.\.\)"):
        read_world(folder)
    read_world(folder, on_split_overlap="count")
    assert json.loads((folder / "eval.summary").read_text())["eval_questions_in_train"] == 8
