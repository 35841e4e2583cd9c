"""Thumbnails of examples, embedded in the self-contained report page within a limit of bytes."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lever_pipe.base.images import read_rgb

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_BYTES = 60_000
"""Limit for all data URIs of a gallery together."""
SIDES = (96, 80, 64, 56, 48, 40, 32, 24, 16)
"""Longest sides in pixels, tried in this order."""
QUALITY = 60


def thumbnails(paths: Mapping[str, Path], most_bytes: int = MOST_BYTES) -> dict[str, dict[str, Any]]:
    """Return each picture as a data URI with its width and height, all at the largest of `SIDES` that fits the limit.

    The result depends on the files alone. It is empty if even the smallest side does not fit.

    Raises:
        ImageError: a file is missing or broken.
    """
    pictures = {}
    for key, path in paths.items():
        pictures[key] = read_rgb(path)
        pictures[key].thumbnail((SIDES[0], SIDES[0]))  # full-size photographs would fill the memory
    for side in SIDES:
        made = {key: _thumbnail(picture, side) for key, picture in pictures.items()}
        if sum(len(one["uri"]) for one in made.values()) <= most_bytes:
            return made
    return {}


def _thumbnail(picture: Image, side: int) -> dict[str, Any]:
    small, written = picture.copy(), BytesIO()
    small.thumbnail((side, side))
    small.save(written, "WEBP", quality=QUALITY, method=6)
    uri = f"data:image/webp;base64,{base64.b64encode(written.getvalue()).decode()}"
    return {"uri": uri, "width": small.width, "height": small.height}
