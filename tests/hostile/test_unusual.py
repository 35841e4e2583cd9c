"""A reader that refuses everything is useless: unusual but valid input passes, with its numbers intact."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from user_files import FileReader, linked, put, read_image, read_world, write_weights

from lever_pipe.base import images

logging.getLogger("transformers").setLevel(logging.CRITICAL)
pytestmark = pytest.mark.filterwarnings("ignore")
NOISE = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
COLOURS = Image.fromarray(NOISE)
WHITE = 255


def bytes_of(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[images.ORIENTATION] = orientation
    return bytes_of(COLOURS, "PNG", exif=exif)


def with_alpha(alpha: int) -> Image.Image:
    image = COLOURS.convert("RGBA")
    image.putalpha(alpha)
    return image


# EXIF's instructions for the stored pixels.
TURNS = {
    1: NOISE, 2: NOISE[:, ::-1], 3: NOISE[::-1, ::-1], 4: NOISE[::-1], 5: NOISE.swapaxes(0, 1),
    6: np.rot90(NOISE, -1), 7: np.rot90(NOISE, 2).swapaxes(0, 1), 8: np.rot90(NOISE),
}  # fmt: skip
LUMA = np.repeat(np.asarray(COLOURS.convert("L"))[..., None], 3, axis=2)
PALETTE = COLOURS.convert("P", palette=Image.Palette.ADAPTIVE, colors=16)
CMYK = np.random.default_rng(1).integers(0, 256, (20, 30, 4), dtype=np.uint8)
LESS = 255 - CMYK.astype(int)
IMAGES: dict[str, tuple[bytes, np.ndarray[Any, Any], int]] = {  # content, pixels, and maximum difference
    **{f"EXIF {n}": (turned(n), pixels, 0) for n, pixels in TURNS.items()},
    "EXIF 0": (turned(0), NOISE, 0), "EXIF 9": (turned(9), NOISE, 0),
    "grey": (bytes_of(COLOURS.convert("L"), "PNG"), LUMA, 0),
    "grey with alpha": (bytes_of(COLOURS.convert("LA"), "PNG"), LUMA, 0),
    "bilevel": (bytes_of(COLOURS.convert("1"), "PNG"), np.asarray(COLOURS.convert("1").convert("RGB")), 0),
    "palette": (bytes_of(PALETTE, "PNG"), np.asarray(PALETTE.convert("RGB")), 0),
    "palette GIF": (bytes_of(PALETTE, "GIF"), np.asarray(PALETTE.convert("RGB")), 0),
    "opaque": (bytes_of(with_alpha(255), "PNG"), NOISE, 0),
    "transparent": (bytes_of(with_alpha(0), "PNG"), np.full_like(NOISE, WHITE), 0),
    "half transparent": (bytes_of(with_alpha(128), "PNG"), (NOISE * 128.0 + WHITE * 127.0) / 255, 1),
    "CMYK": (bytes_of(Image.fromarray(CMYK, "CMYK"), "TIFF"), LESS[..., :3] * LESS[..., 3:] / 255, 1),
    "YCbCr": (bytes_of(COLOURS.convert("YCbCr"), "TIFF"), NOISE, 3),
    "BMP": (bytes_of(COLOURS, "BMP"), NOISE, 0), "PPM": (bytes_of(COLOURS, "PPM"), NOISE, 0),
    "TIFF": (bytes_of(COLOURS, "TIFF"), NOISE, 0), "JPEG 2000": (bytes_of(COLOURS, "JPEG2000"), NOISE, 0),
    "lossless WebP": (bytes_of(COLOURS, "WEBP", lossless=True), NOISE, 0),
    "MPO": (bytes_of(COLOURS.resize((90, 60)), "MPO", save_all=True, append_images=[COLOURS]), None, 0),  # type: ignore[dict-item]
    "progressive JPEG": (bytes_of(Image.new("RGB", (17, 23), "red"), "JPEG", progressive=True),
                         np.full((23, 17, 3), (255, 0, 0)), 2),
    "a tail": (bytes_of(COLOURS, "PNG") + b"more", NOISE, 0),
    **{f"{w} x {h}": (bytes_of(Image.new("RGB", (w, h), (9, 8, 7)), "PNG"), np.full((h, w, 3), (9, 8, 7)), 0)
       for w, h in ((1, 1), (1, 200), (200, 1), (2, 3), (4000, 20), (333, 7), (28, 28))},
    "as many pixels as are taken": (bytes_of(Image.new("1", (8192, 4096)), "PNG"), None, 0),  # type: ignore[dict-item]
}  # fmt: skip


def test_images_show_what_their_files_say(tmp_path: Path) -> None:
    complaints = []
    for name, (content, wanted, bound) in IMAGES.items():
        path = tmp_path / "an image"
        put(path, content)
        try:
            found = read_image(path)
        except Exception as error:  # noqa: BLE001 - whatever keeps it out
            complaints.append(f"{name}: {error}")
            continue
        if wanted is not None and (
            found.shape != wanted.shape or np.abs(found.astype(float) - wanted).max() > bound + 0.5 * bool(bound)
        ):
            complaints.append(f"{name}: other pixels")
    assert not complaints, "\n".join(complaints)


def test_entries_may_stand_in_any_order_and_share_what_they_like(
    readers: dict[str, FileReader], tmp_path: Path
) -> None:
    truth = read_world(linked(readers["world"].folder, tmp_path / "sound"))
    folder = linked(readers["world"].folder, tmp_path / "shuffled")
    for split in ("train", "eval"):
        for kind in ("questions", "annotations"):
            document = json.loads((folder / f"{split}_{kind}").read_text())
            document[kind].sort(key=lambda entry: -entry["question_id"])
            put(folder / f"{split}_{kind}", json.dumps(document))
    assert read_world(folder) == truth
    # A train image may be asked about in the evaluation too, as long as the question is another.
    shared = json.loads((folder / "eval_questions").read_text())
    name = "COCO_{}2014_{:012d}.png"
    first = json.loads((folder / "train_questions").read_text())["questions"][0]
    image_id = shared["questions"][0]["image_id"]
    pixels = (folder / "train_images" / name.format("train", first["image_id"])).read_bytes()
    put(folder / "eval_images" / name.format("val", image_id), pixels)
    assert read_world(folder) == truth


def to(dtype: torch.dtype) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "model.safetensors"
        write_weights(path, {name: tensor.to(dtype) for name, tensor in load_file(path).items()})

    return change


def edit(file: str, **values: Any) -> Callable[[Path], None]:
    return lambda folder: put(folder / file, json.dumps({**json.loads((folder / file).read_text()), **values}))


def sharded(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    parts = {f"model-{i}.safetensors": dict(list(tensors.items())[i::2]) for i in (0, 1)}
    for name, part in parts.items():
        (folder / name).write_bytes((folder / "model.safetensors").read_bytes())
        write_weights(folder / name, part)
    index = {
        "metadata": {"total_size": 0},
        "weight_map": {tensor: name for name, part in parts.items() for tensor in part},
    }
    put(folder / "model.safetensors.index.json", json.dumps(index))
    (folder / "model.safetensors").unlink()


UNUSUAL: tuple[tuple[str, Callable[[Path], object]], ...] = (
    ("float64", to(torch.float64)),
    ("shards", sharded),
    ("indented JSON", lambda f: [put(p, json.dumps(json.loads(p.read_text()), indent=3)) for p in f.glob("*.json")]),
    ("a README", lambda folder: (folder / "README.md").write_text("# model")),
    ("other architectures", edit("config.json", architectures=["Foo"])),
    ("remote code that nobody runs", edit("config.json", auto_map={"AutoConfig": "evil.C"})),
    ("dtype of its own", edit("config.json", dtype="float16")),
    ("a longest text", edit("tokenizer_config.json", model_max_length=3)),
    ("truncation in the tokenizer", edit("tokenizer.json", truncation={
        "max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"})),
    ("links", lambda folder: [(p.rename(folder.parent / p.name), p.symlink_to(folder.parent / p.name))
                              for p in list(folder.iterdir())]),
)  # fmt: skip


@pytest.mark.parametrize("name", ["lvlm", "clip"])
def test_models_may_be_stored_in_several_ways(readers: dict[str, FileReader], tmp_path: Path, name: str) -> None:
    truth = readers[name].read(linked(readers[name].folder, tmp_path / "sound"))
    for kind, change in UNUSUAL:
        folder = linked(readers[name].folder, tmp_path / kind / "a model, \u00e9")
        change(folder)
        assert readers[name].read(folder) == truth, kind
    for dtype in (torch.float16, torch.bfloat16):  # rounded weights are weights, with answers of their own
        folder = linked(readers[name].folder, tmp_path / str(dtype))
        to(dtype)(folder)
        readers[name].read(folder)


def test_rl_data_may_differ_in_what_decides_nothing(readers: dict[str, FileReader], tmp_path: Path) -> None:
    reader = readers["rl_data"]
    truth = reader.read(linked(reader.folder, tmp_path / "sound"))
    sound = json.loads((reader.folder / "original.json").read_text())

    def changed(**values: Any) -> Any:
        queries = {key: block for key, block in sound.items() if key != "_meta"}
        for block in queries.values():
            block["pointer_candidates"] = [{**row, **values} for row in block["pointer_candidates"]]
        return {"_meta": sound["_meta"], **queries}

    sound["1"]["query"]["gt_answers_raw"].reverse()
    variants: dict[str, Any] = {
        "answers in another order": sound,
        "no _meta": {key: block for key, block in sound.items() if key != "_meta"},
        "a note": {**sound, "_meta": {"fix_version": "v3", "note": "\u00e9", "created_at": None}},
        "stale positions": changed(pointer_pos=[900, 901]),
        "fields of later generators": changed(aug_type="all0", aug_round=2, proxy_score=0.5, prompt_text="x"),
    }
    for kind, document in variants.items():
        folder = linked(reader.folder, tmp_path / kind)
        put(folder / "original.json", json.dumps(document))
        rows = [json.loads(line) for line in reader.read(folder)[0].splitlines()]
        for row, wanted in zip(rows, map(json.loads, truth[0].splitlines()), strict=True):
            row["query"]["gt_answers_raw"].sort()
            wanted["query"]["gt_answers_raw"].sort()
            assert row == wanted, kind
