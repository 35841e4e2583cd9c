"""Corrupted rows and documents: each is refused by name, or read exactly. Images of all modes and formats.

A reader of JSON gets corruption to the words of a sound document and to its bytes; its truth is `only_reading`, which
is independent of the package.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from corruption import NoOneReading, corrupted, corrupted_bytes, fewer_inputs, inputs, law_of, only_reading, same
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from user_files import bytes_of, put, read_image

from lever_pipe.base import images, storage
from lever_pipe.base.model_folders import GENERATION, end_tokens
from lever_pipe.base.records import Example, Manifest, RlGroup, SubsetScore
from lever_pipe.intention.codecs import word
from lever_pipe.intention.sources import intentiongym
from lever_pipe.intention.sources.protocol import RawFiles

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr", "ignore:Image size")


class Reader(NamedTuple):
    """A reader of a JSON file: the file's name, a sound document, the call, and the expected result of a document."""

    file: str
    document: Any
    read: Callable[[Path], Any]
    wanted: Callable[[Any], Any] = lambda document: document


def row_reader(model: Any, **document: Any) -> Reader:
    return Reader("row.json", document, lambda path: storage.read_row(path, model).model_dump())


def named_ends(document: Any) -> Any:
    named = document.get("eos_token_id")
    return named if isinstance(named, list) else [] if named is None else [named]


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
READERS = {
    "JSON": Reader("a.json", {"a": [1, 2.5, "x", None, True], "b": {"c": "\u00e9"}}, storage.read_json),
    "example": row_reader(
        Example, example_id=0, question_id=10, image_id=1, image="a.jpg", image_digest="0" * 64, question="what?",
        question_type="one", answers=["red", "blue"], answer="red",
    ),
    "group": row_reader(RlGroup, query=QUERY, candidate_pool_ids=[7, 8], pointer_candidates=[TRAJECTORY]),
    "manifest": row_reader(
        Manifest, stage="a", config={"x": [1, 2.5, None], "y": {"z": True}}, inputs={"a": "0" * 64}, code="c",
        commit="0", dirty=False, versions={"torch": "2"}, device="cpu", threads=1, seconds=0.5,
    ),
    "end tokens": Reader(
        GENERATION, {"eos_token_id": [151645, 151643]}, lambda path: end_tokens(path.parent), named_ends
    ),
    "vocabulary": Reader(
        word.FILE, sorted({*word.GRAMMAR, "colour", "size"}), lambda path: word.load(path.parent).words
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
@inputs
@given(data=st.data())
def test_what_is_read_is_what_stands_there(tmp_path: Path, name: str, data: st.DataObject) -> None:
    reader = READERS[name]
    path, content = tmp_path / reader.file, data.draw(corrupted(reader.document))
    path.write_bytes(content)
    taken, value = law_of(lambda: reader.read(path), names=path.name)
    try:
        document = only_reading(content)
    except NoOneReading:
        assert not taken
    else:
        assert taken or name != "JSON"  # any JSON is some JSON
        assert not taken or same(value, reader.wanted(document))


@inputs
@given(bad=corrupted(SUBSET).filter(lambda content: b"\n" not in content), before=st.integers(0, 3))
def test_a_problem_names_its_line(tmp_path: Path, bad: bytes, before: int) -> None:
    whole, path = json.dumps(SUBSET).encode(), tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([*[whole] * before, bad, whole]))
    taken, rows = law_of(lambda: storage.read_rows(path, SubsetScore), names=f"{path}:{before + 1}: ")
    if taken:
        assert len(rows) == before + 2
        assert same(rows[before].model_dump(), only_reading(bad))


@pytest.fixture(scope="module")
def splits_of_parquet(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, RawFiles]:
    """Return a parquet file with the names of two tasks, and a set of files of tasks that begins with it."""
    import duckdb

    folder = tmp_path_factory.mktemp("parquet")
    detail = {"description": "size", "importance": 2, "inquiry": "which size?", "options": ["s", "m"]}
    for split in ("train", "val", "test"):
        task = {"category": "shop", "missing_details": [detail]}
        tasks = [{"id": name, "task": name, **task} for name in (split, f"{split} 2")]
        (folder / f"{split}.json").write_text(json.dumps(tasks))
    duckdb.sql(
        "SELECT 'interact_intention' AS data_source, {'id': name, 'style': 'x'} AS reward_model "
        "FROM (VALUES ('train'), ('train 2')) t(name)"
    ).write_parquet(str(folder / "rows.parquet"))
    others = ((folder / f"{name}.json",) for name in ("val", "test", "train"))
    return (folder / "rows.parquet").read_bytes(), RawFiles((folder / "corrupted.parquet",), *others)


@fewer_inputs
@given(data=st.data())
def test_parquet_rows_name_tasks_with_details(splits_of_parquet: tuple[bytes, RawFiles], data: st.DataObject) -> None:
    sound, files = splits_of_parquet
    path = files.train[0]
    path.write_bytes(data.draw(corrupted_bytes(sound)))
    taken, found = law_of(lambda: intentiongym.read(None, files), names=str(path))
    if taken:
        assert {each.id for each in found.train} <= {"train", "train 2"}


NOISE = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
COLOURS = Image.fromarray(NOISE)
WHITE = 255


def turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[images.ORIENTATION] = orientation
    return bytes_of(COLOURS, "PNG", exif=exif)


def with_alpha(alpha: int) -> bytes:
    image = COLOURS.convert("RGBA")
    image.putalpha(alpha)
    return bytes_of(image, "PNG")


# EXIF's instructions for the stored pixels.
TURNS = {
    1: NOISE, 2: NOISE[:, ::-1], 3: NOISE[::-1, ::-1], 4: NOISE[::-1], 5: NOISE.swapaxes(0, 1),
    6: np.rot90(NOISE, -1), 7: np.rot90(NOISE, 2).swapaxes(0, 1), 8: np.rot90(NOISE), 0: NOISE, 9: NOISE,
}  # fmt: skip
LUMA = np.repeat(np.asarray(COLOURS.convert("L"))[..., None], 3, axis=2)
PALETTE = COLOURS.convert("P", palette=Image.Palette.ADAPTIVE, colors=16)
CMYK = np.random.default_rng(1).integers(0, 256, (20, 30, 4), dtype=np.uint8)
LESS = 255 - CMYK.astype(int)
RED = Image.new("RGB", (17, 23), "red")
IMAGES: dict[str, tuple[bytes, Any, int]] = {  # content, pixels, and maximum difference
    **{f"EXIF {n}": (turned(n), pixels, 0) for n, pixels in TURNS.items()},
    "grey": (bytes_of(COLOURS.convert("L"), "PNG"), LUMA, 0),
    "grey with alpha": (bytes_of(COLOURS.convert("LA"), "PNG"), LUMA, 0),
    "bilevel": (bytes_of(COLOURS.convert("1"), "PNG"), np.asarray(COLOURS.convert("1").convert("RGB")), 0),
    **{f"palette {kind}": (bytes_of(PALETTE, kind), np.asarray(PALETTE.convert("RGB")), 0) for kind in ("PNG", "GIF")},
    "opaque": (with_alpha(255), NOISE, 0), "transparent": (with_alpha(0), np.full_like(NOISE, WHITE), 0),
    "half transparent": (with_alpha(128), (NOISE * 128.0 + WHITE * 127.0) / 255, 1),
    "CMYK": (bytes_of(Image.fromarray(CMYK, "CMYK"), "TIFF"), LESS[..., :3] * LESS[..., 3:] / 255, 1),
    "YCbCr": (bytes_of(COLOURS.convert("YCbCr"), "TIFF"), NOISE, 3),
    **{kind: (bytes_of(COLOURS, kind), NOISE, 0) for kind in ("BMP", "PPM", "TIFF", "JPEG2000")},
    "lossless WebP": (bytes_of(COLOURS, "WEBP", lossless=True), NOISE, 0),
    "MPO": (bytes_of(COLOURS.resize((90, 60)), "MPO", save_all=True, append_images=[COLOURS]), None, 0),
    "progressive JPEG": (bytes_of(RED, "JPEG", progressive=True), np.full((23, 17, 3), (255, 0, 0)), 2),
    "a tail": (bytes_of(COLOURS, "PNG") + b"more", NOISE, 0),
    **{f"{w} x {h}": (bytes_of(Image.new("RGB", (w, h), (9, 8, 7)), "PNG"), np.full((h, w, 3), (9, 8, 7)), 0)
       for w, h in ((1, 1), (1, 200), (200, 1), (4000, 20))},
    "as many pixels as are taken": (bytes_of(Image.new("1", (8192, 4096)), "PNG"), None, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", IMAGES)
def test_images_show_what_their_files_say(tmp_path: Path, name: str) -> None:
    content, wanted, bound = IMAGES[name]
    put(tmp_path / "an image", content)
    found = read_image(tmp_path / "an image")
    if wanted is not None:
        assert found.shape == wanted.shape
        assert np.abs(found.astype(float) - wanted).max() <= bound + 0.5 * bool(bound)
