from __future__ import annotations

import base64
import hashlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lever_pipe.base.errors import ImageError
from lever_pipe.lever.thumbnails import MOST_EACH, thumbnails


def picture(folder: Path, name: str, pixels: np.ndarray) -> tuple[str, Path]:
    path = folder / name
    Image.fromarray(pixels).save(path)
    return hashlib.sha256(path.read_bytes()).hexdigest(), path


def shown(uri: str) -> Image.Image:
    return Image.open(BytesIO(base64.b64decode(uri.removeprefix("data:image/png;base64,"))))


def test_a_small_picture_keeps_its_size_and_colours(tmp_path: Path) -> None:
    pixels = np.zeros((56, 40, 3), np.uint8)
    pixels[10:30, 5:20] = (214, 40, 40)
    digest, path = picture(tmp_path, "a.png", pixels)
    found = shown(thumbnails({digest: path})[digest])
    assert found.size == (40, 56)
    assert np.abs(np.asarray(found.convert("RGB")).astype(int) - pixels).max() <= 4


def test_photographs_shrink_until_they_keep_both_bounds(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    paths = dict(picture(tmp_path, f"{i}.png", rng.integers(0, 256, (200, 300, 3), np.uint8)) for i in range(8))
    alone, together = thumbnails(paths), thumbnails(paths, most_together=12_000)
    assert max(len(base64.b64decode(uri.partition(",")[2])) for uri in alone.values()) <= MOST_EACH
    assert sum(map(len, together.values())) <= 12_000 < sum(map(len, alone.values()))
    assert {shown(uri).size for uri in together.values()} != {shown(uri).size for uri in alone.values()}
    assert thumbnails(paths) == alone


def test_another_picture_under_the_name_is_refused(tmp_path: Path) -> None:
    digest, path = picture(tmp_path, "a.png", np.zeros((4, 4, 3), np.uint8))
    picture(tmp_path, "a.png", np.ones((4, 4, 3), np.uint8))
    with pytest.raises(ImageError, match="other bytes"):
        thumbnails({digest: path})
    with pytest.raises(ImageError, match="expected an image"):
        thumbnails({digest: tmp_path / "none.png"})
