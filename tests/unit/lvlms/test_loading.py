"""Folders whose parts do not fit each other are refused with a message that names the fault."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lever_pipe.base.errors import CheckpointError
from lever_pipe.lvlms.qwen2_5_vl import load

Harm = Callable[[Path], None]
Change = Callable[[dict[str, Any]], object]


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


def halved(name: str) -> Harm:
    def apply(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return apply


def tensors(change: Change) -> Harm:
    def apply(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return apply


def named(weights: dict[str, Any], end: str) -> str:
    return next(name for name in weights if name.endswith(end))


FILES = ("config.json", "model.safetensors", "tokenizer.json", "preprocessor_config.json")
FAULTS: dict[str, tuple[Harm, str]] = {
    **{f"half {name}": (halved(name), r"expected .*; found .*\. Download the folder whole") for name in FILES},
    **{f"no {name}": (lambda folder, name=name: (folder / name).unlink(), f"no {name}") for name in FILES},
    "a missing tensor": (tensors(lambda w: w.pop(named(w, "0.attn.qkv.weight"))), "missing_keys: .*0.attn.qkv.weight"),
    "another tensor": (tensors(lambda w: w.update(extra=torch.zeros(2))), "unexpected_keys: extra"),
    "a short tensor": (
        tensors(lambda w: w.update({named(w, "model.norm.weight"): torch.zeros(3)})),
        r"mismatched_keys: .*norm\.weight",
    ),
    "another family": (config(lambda c: c.update(model_type="llama")), "expected model_type .*; found 'llama'"),
    "heads": (text(num_key_value_heads=3), "4 heads, 3 of keys"),
    "positions by company": (
        text(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0, "mrope_section": [2, 3, 3]}),
        "rope_type dynamic",
    ),
    "another image token": (config(lambda c: c.update(image_token_id=7)), r"is \[\d+\] for 7"),
    "no padding token": (edited("tokenizer_config.json", lambda t: t.update(pad_token=None)), "no pad_token"),
    "dark pixels": (pixels(lambda p: p.update(rescale_factor=1.0)), r"preprocessor_config\.json: .*rescale_factor"),
    "sections": (
        text(rope_parameters={"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 4]}),
        r"mrope_section \[2, 3, 4\] on heads of 16",
    ),
    "vision heads": (vision(num_heads=3), "3 vision heads on 32"),
    "another end": (edited("tokenizer_config.json", lambda t: t.update(eos_token="<|endoftext|>")), "turns ending in"),
    "another square": (pixels(lambda p: p.update(merge_size=1)), "merge_size 1 for 2"),
    "no size": (pixels(lambda p: p.update(size={"shortest_edge": 9, "longest_edge": 3})), "found size"),
}


@pytest.mark.parametrize(("harm", "message"), FAULTS.values(), ids=FAULTS)
def test_parts_that_do_not_fit_are_named(folder: Path, tmp_path: Path, harm: Harm, message: str) -> None:
    copy = tmp_path / "model"
    shutil.copytree(folder, copy)
    harm(copy)
    with pytest.raises(CheckpointError, match=message) as told:
        load(copy, dtype="float32", device="cpu")
    assert str(copy) in str(told.value)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"absent: expected a Qwen2\.5-VL model folder"):
        load(tmp_path / "absent", dtype="float32", device="cpu")
