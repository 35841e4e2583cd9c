"""Small pictures for a page that stands alone: PNG in data URIs, all of them within one bound."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from lever_pipe.base import images
from lever_pipe.base.errors import ImageError

if TYPE_CHECKING:
    from PIL.Image import Image

SIZES = ((96, 128), (96, 64), (72, 64), (64, 48), (56, 32), (48, 32), (40, 24), (32, 16), (24, 8))
"""Longest side in pixels and number of colours, tried in this order."""
MOST_EACH = 6_000
"""Bytes of a PNG."""
MOST_TOGETHER = 200_000
"""Characters of all data URIs."""


def thumbnails(paths: Mapping[str, Path], *, most_together: int = MOST_TOGETHER) -> dict[str, str]:
    """Return a data URI for each picture, all of the first of `SIZES` at which they keep the bounds, else of the last.

    Args:
        paths: the sha256 of a picture's bytes -> its file.
        most_together: characters of all data URIs.

    Raises:
        ImageError: no such file, another one than the sha256 says, or one that shows nothing.
    """
    pictures = {digest: _read(path, digest) for digest, path in paths.items()}
    uris: dict[str, str] = {}
    for side, colours in SIZES:
        encoded = {digest: _png(picture, side, colours) for digest, picture in pictures.items()}
        uris = {digest: f"data:image/png;base64,{base64.b64encode(png).decode()}" for digest, png in encoded.items()}
        largest = max((len(png) for png in encoded.values()), default=0)
        if largest <= MOST_EACH and sum(map(len, uris.values())) <= most_together:
            break
    return uris


def _read(path: Path, digest: str) -> Image:
    if images.digest_of(path) != digest:
        raise ImageError(
            f"{path}: expected the image that the examples name", found="other bytes", do="Rerun prepare_examples."
        )
    return images.read_rgb(path)


def _png(picture: Image, side: int, colours: int) -> bytes:
    small = picture.copy()
    small.thumbnail((side, side))
    buffer = BytesIO()
    small.quantize(colours).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
