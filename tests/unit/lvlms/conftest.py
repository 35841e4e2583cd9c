"""A tiny random Qwen2.5-VL whose outputs react to images and positions, as a folder and as loaded parts."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from engine_bench import Bench, Library
from PIL import Image
from tiny_folders import FOLDERS

from lever_pipe.lvlms.qwen2_5_vl import Qwen, load

SIZES = ((112, 84), (84, 112), (112, 112), (168, 56), (56, 140))  # width, height


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "model"
    FOLDERS["qwen2_5_vl"](path)
    return path


@pytest.fixture(scope="session")
def parts(folder: Path) -> Qwen:
    return load(folder, dtype="float32", device="cpu")


@pytest.fixture(scope="session")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Image files of several shapes by digest; the names sort in the order of making."""
    root, found = tmp_path_factory.mktemp("images"), {}
    for number in range(10):
        rng = np.random.default_rng(number)
        low = Image.fromarray(rng.integers(0, 255, (5, 5, 3), dtype=np.uint8))
        path = root / f"{number}.png"
        low.resize(SIZES[number % len(SIZES)], Image.Resampling.BICUBIC).save(path)
        found[hashlib.sha256(path.read_bytes()).hexdigest()] = path
    return found


@pytest.fixture(scope="session")
def bench(folder: Path, parts: Qwen, paths: dict[str, Path]) -> Bench:
    return Bench(parts, paths, Library(folder, paths))
