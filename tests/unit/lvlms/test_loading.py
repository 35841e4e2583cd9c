"""Folders whose parts do not fit each other are refused with a message that names the fault."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from families import FOLDERS

from lever_pipe.base.errors import CheckpointError

Harm = Callable[[Path], None]
Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("folders")
    for member in ("idefics3", "smolvlm", "qwen3_vl"):
        FOLDERS[member](root / member)
    return {path.name: path for path in root.iterdir()}


def edited(name: str, change: Change) -> Harm:
    def apply(folder: Path) -> None:
        settings = json.loads((folder / name).read_text())
        change(settings)
        (folder / name).write_text(json.dumps(settings))

    return apply


def config(change: Change) -> Harm:
    return edited("config.json", change)


def text(**settings: object) -> Harm:
    return config(lambda c: c["text_config"].update(settings))


def vision(**settings: object) -> Harm:
    return config(lambda c: c["vision_config"].update(settings))


def pixels(change: Change) -> Harm:
    return edited("preprocessor_config.json", change)


def without(token: str) -> Harm:
    def apply(folder: Path) -> None:
        for path in (folder / "tokenizer.json", folder / "tokenizer_config.json"):
            path.write_text(path.read_text().replace(token, f"<other{token[1:]}"))

    return apply


ANY: dict[str, tuple[Harm, str]] = {
    "another family": (config(lambda c: c.update(model_type="llama")), "expected model_type .*; found 'llama'"),
    "heads": (text(num_key_value_heads=3), "4 heads, 3 of keys"),
    "positions by company": (
        text(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0, "mrope_section": [4, 4, 4]}),
        "rope_type dynamic",
    ),
    "another image token": (config(lambda c: c.update(image_token_id=7)), r"is \[\d+\] for 7"),
    "no padding token": (edited("tokenizer_config.json", lambda t: t.update(pad_token=None)), "no pad_token"),
    "dark pixels": (pixels(lambda p: p.update(rescale_factor=1.0)), r"preprocessor_config\.json: .*rescale_factor"),
    "a file": (lambda folder: (folder / "preprocessor_config.json").unlink(), r"no preprocessor_config\.json"),
}
TILES: dict[str, tuple[Harm, str]] = {
    "another text part": (text(model_type="qwen2", layer_types=None), "a text part 'qwen2', not 'llama'"),
    "vision heads": (vision(num_attention_heads=3), "3 vision heads on 32"),
    "a square that does not fit": (config(lambda c: c.update(scale_factor=5)), "scale_factor 5 for . patches a side"),
    "sides of a tile": (vision(image_size=[28, 28]), r"tiles of \[28, 28\]"),
    "no token around images": (
        without("<fake_token_around_image>"),
        r"<fake_token_around_image> is \[.*\] for a token",
    ),
    "no end": (without("<end_of_utterance>"), r"<end_of_utterance> is \[.*\] for a token"),
    "tiles of another size": (
        pixels(lambda p: p.update(max_image_size={"longest_edge": 35})),
        r"preprocessor_config\.json: .*max_image_size 35 for \d+",
    ),
    "no size": (pixels(lambda p: p.update(size={"height": 9, "width": 9})), "found size"),
    "missing settings": (pixels(lambda p: p.pop("max_image_size")), "no max_image_size"),
    "no padding": (pixels(lambda p: p.update(do_pad=False)), "do_pad False for True"),
}
QWEN3: dict[str, tuple[Harm, str]] = {
    "sections": (
        text(rope_parameters={"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]}),
        r"mrope_section \[4, 6, 6\] on heads of 24",
    ),
    "vision heads": (vision(num_heads=3), "3 vision heads on 32"),
    "features of another width": (vision(out_hidden_size=32), "image features of 32 for tokens of 64"),
    "learned positions": (vision(num_position_embeddings=35), "num_position_embeddings 35, no square"),
    "a deeper layer": (vision(deepstack_visual_indexes=[0, 9]), r"deepstack_visual_indexes \[0, 9\] of 3 blocks"),
    "more deeper features than layers": (
        text(num_hidden_layers=2),
        r"deepstack_visual_indexes \[0, 1\] of 3 blocks, for 2 layers",
    ),
    "another end": (edited("tokenizer_config.json", lambda t: t.update(eos_token="<|endoftext|>")), "turns ending in"),
    "another square": (pixels(lambda p: p.update(merge_size=1)), "merge_size 1 for 2"),
    "no size": (pixels(lambda p: p.update(size={"shortest_edge": 9, "longest_edge": 3})), "found size"),
}
CASES = [
    *((member, name, *fault) for member in ("idefics3", "smolvlm", "qwen3_vl") for name, fault in ANY.items()),
    *((member, name, *fault) for member in ("idefics3", "smolvlm") for name, fault in TILES.items()),
    *(("qwen3_vl", name, *fault) for name, fault in QWEN3.items()),
    ("idefics3", "no start", without("<|begin_of_text|>"), r"expected a tokenizer with .* found neither"),
]


@pytest.mark.parametrize(("member", "harm", "message"), [(m, h, said) for m, _, h, said in CASES], ids=lambda case: "")
def test_parts_that_do_not_fit_are_named(
    folders: dict[str, Path], tmp_path: Path, member: str, harm: Harm, message: str
) -> None:
    copy = tmp_path / member
    shutil.copytree(folders[member], copy)
    harm(copy)
    with pytest.raises(CheckpointError, match=message) as told:
        import_module(f"lever_pipe.lvlms.{member}").load(copy, dtype="float32", device="cpu")
    assert str(copy) in str(told.value)


@pytest.mark.parametrize(
    ("member", "title"), [("idefics3", "an Idefics3"), ("smolvlm", "a SmolVLM"), ("qwen3_vl", "a Qwen3-VL")]
)
def test_a_missing_folder_is_named(tmp_path: Path, member: str, title: str) -> None:
    with pytest.raises(CheckpointError, match=f"absent: expected {title} model folder"):
        import_module(f"lever_pipe.lvlms.{member}").load(tmp_path / "absent", dtype="float32", device="cpu")
