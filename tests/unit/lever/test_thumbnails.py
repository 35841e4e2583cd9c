"""Thumbnails on noise, which compresses worst, keep to their number of bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lever_pipe.lever import thumbnails as module
from lever_pipe.lever.thumbnails import SIDES, thumbnails


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, Path]:
    rng = np.random.default_rng(0)
    found = {str(i): tmp_path / f"{i}.png" for i in range(6)}
    for path in found.values():
        Image.fromarray(rng.integers(0, 256, (200, 400, 3), dtype=np.uint8)).save(path)
    return found


@pytest.mark.parametrize("most_bytes", [60_000, 20_000, 5_000])
def test_the_largest_side_that_fits_is_taken(
    paths: dict[str, Path], most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = thumbnails(paths, most_bytes)
    side = made["0"]["width"]
    assert sum(len(one["uri"]) for one in made.values()) <= most_bytes
    assert {(one["width"], one["height"]) for one in made.values()} == {(side, side // 2)}
    assert thumbnails(paths, most_bytes) == made
    if larger := tuple(of for of in SIDES if of > side):
        monkeypatch.setattr(module, "SIDES", larger)
        assert thumbnails(paths, most_bytes) == {}  # none of the larger sides fits


def test_nothing_is_shown_where_nothing_fits(paths: dict[str, Path]) -> None:
    assert thumbnails(paths, 100) == {}
