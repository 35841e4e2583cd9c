"""Detect a model folder with a missing or truncated file without reading a weight."""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from lever_pipe.base import model_folders
from lever_pipe.base.errors import CheckpointError

REPOSITORY = Path(__file__).parents[3]
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
FILES = ("config.json", "tokenizer.json")


def safetensors(*lengths: int) -> bytes:
    """Return a file with one uint8 tensor of each length."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for i, length in enumerate(lengths):
        header[f"t{i}"] = {"dtype": "U8", "shape": [length], "data_offsets": [end, end + length]}  # type: ignore[dict-item]
        end += length
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"\1" * end


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text('{"model": {}}')
    (tmp_path / "one.safetensors").write_bytes(safetensors(5, 7))
    (tmp_path / "two.safetensors").write_bytes(safetensors(3))
    index = {"weight_map": {"t0": "one.safetensors", "t1": "one.safetensors", "u0": "two.safetensors"}}
    (tmp_path / model_folders.INDEX).write_text(json.dumps(index))
    return tmp_path


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("name", ["clip", "lvlm"])
def test_the_shipped_models_are_whole(name: str) -> None:
    assert model_folders.problems_of(REPOSITORY / "resources/world" / name, files=FILES) == []


def test_a_sharded_folder_is_whole(folder: Path) -> None:
    assert model_folders.problems_of(folder, files=FILES, any_of=("vocab.json", "tokenizer.json")) == []


@pytest.mark.parametrize(
    ("corruption", "message"),
    [
        (lambda folder: shutil.rmtree(folder), "no such folder"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer.json"),
        (lambda folder: (folder / "tokenizer.json").write_text(POINTER), "tokenizer.json is a git-lfs pointer"),
        (lambda folder: (folder / "two.safetensors").unlink(), "no two.safetensors"),
        (lambda folder: cut(folder / "one.safetensors"), "one.safetensors is not whole"),
        (
            lambda folder: (folder / "one.safetensors").write_bytes(safetensors(5, 7) + b"x"),
            "one.safetensors is not whole",
        ),
        (lambda folder: (folder / "one.safetensors").write_text(POINTER), "one.safetensors is a git-lfs pointer"),
        (lambda folder: (folder / "one.safetensors").write_bytes(b""), "one.safetensors is not whole"),
        (
            lambda folder: (folder / "one.safetensors").write_bytes(safetensors(5)[:20]),
            "one.safetensors is not whole",
        ),
        (lambda folder: (folder / model_folders.INDEX).unlink(), "no model.safetensors"),
    ],
)
def test_each_corruption_is_the_one_problem(folder: Path, corruption: Callable[[Path], object], message: str) -> None:
    corruption(folder)
    problems = model_folders.problems_of(folder, files=FILES)
    assert len(problems) == 1
    assert message in problems[0]


def test_a_folder_without_weights_or_tokenizer_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    problems = model_folders.problems_of(tmp_path, files=("config.json",), any_of=("tokenizer.json", "vocab.json"))
    assert problems == ["none of tokenizer.json, vocab.json", "no model.safetensors"]


def test_a_full_disk_is_no_broken_model(folder: Path) -> None:
    with pytest.raises(OSError, match="No space left"), model_folders.readable(folder, "tokenizer"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as of a progress bar in a log there
    with pytest.raises(CheckpointError, match="found OSError: no x"), model_folders.readable(folder, "tokenizer"):
        raise OSError("no x")  # in the libraries' wording
