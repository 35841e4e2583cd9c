"""Decoding of image files: one definition for checks, embeddings and prompts, with the reason for each refusal.

Accepted: BMP, GIF, JPEG (and MPO, its first picture), JPEG 2000, PNG, PPM, TIFF, WebP.

* The EXIF orientation is applied.
* Palettes, gray, bilevel, YCbCr and HSV are converted to RGB; CMYK becomes (1 - C)(1 - K) and so on. Color profiles
  are ignored, as is common in the field.
* Transparent pixels are put on white, as in Qwen2.5-VL's own utilities.
* Refused, because their appearance is not defined: animations and files of several pages; gray of 16 bits, 32-bit and
  floating-point pixels, whose range is in no file; Lab. Refused by size: more than `MOST_PIXELS`, or a longer side
  beyond `MOST_ELONGATED` times the shorter, which Qwen2.5-VL's image processor refuses.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from lever_pipe.base.errors import ImageError

if TYPE_CHECKING:
    from PIL.Image import Image

# Pillow's names; its JPEG reader also reads MPO.
FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV")
MOST_PIXELS = 2**25  # of an image; one of twice as many takes seconds to decode, and no data set needs it
MOST_ELONGATED = 200
ORIENTATION, SIDEWAYS = 0x0112, (5, 6, 7, 8)


def digest_of(path: Path) -> str:
    """Return the sha256 of the bytes of an image, after decoding it.

    Raises:
        ImageError: the image cannot be used; `found` gives the reason.
    """
    content = _bytes(path)
    with _opening(path, content) as image:
        # A JPEG decoder may scale while it decodes: it still reads all bytes but computes less.
        image.draft(None, (max(1, image.width // 8), max(1, image.height // 8)))
        image.load()
    return hashlib.sha256(content).hexdigest()


def read_rgb(path: Path) -> Image:
    """Return the picture of a file in RGB.

    Raises:
        ImageError: the file is missing, or is no usable image.
    """
    return rgb(path, _bytes(path))


def rgb(path: Path, content: bytes) -> Image:
    """Return the picture in a file's bytes in RGB.

    Raises:
        ImageError: the bytes are no usable image.
    """
    from PIL import Image, ImageOps

    with _opening(path, content) as image:
        upright = ImageOps.exif_transpose(image)
        if upright.has_transparency_data:
            layer = upright.convert("RGBA")
            upright = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
        return upright.convert("RGB")


def data_url(path: Path, content: bytes) -> str:
    """Return an image as a data URL: its bytes, or a PNG if viewers might interpret them differently.

    Raises:
        ImageError: the bytes are no usable image.
    """
    with _opening(path, content) as image:
        kind = str(image.format).lower()
        is_plain = kind in ("jpeg", "png") and image.mode == "RGB" and not image.has_transparency_data
        is_plain &= image.getexif().get(ORIENTATION, 1) == 1
    if not is_plain:
        written = BytesIO()
        rgb(path, content).save(written, "PNG")
        kind, content = "png", written.getvalue()
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def size_of(path: Path, content: bytes) -> tuple[int, int]:
    """Return width and height of the picture that `rgb` returns, without decoding it.

    Raises:
        ImageError: the beginning of the file shows that the image is unusable.
    """
    with _opening(path, content) as image:
        # Pillow applies the orientation of a TIFF itself.
        turned = image.format != "TIFF" and image.getexif().get(ORIENTATION) in SIDEWAYS
        return (image.height, image.width) if turned else (image.width, image.height)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _refused(path, error.strerror or str(error)) from None


@contextmanager
def _opening(path: Path, content: bytes) -> Iterator[Image]:
    """Open an image and check its header; errors inside the block count as a broken image."""
    from PIL import Image

    refusal = ""
    try:
        # From bytes in memory: digest and picture belong together, even if the file changes.
        with Image.open(BytesIO(content), formats=FORMATS) as image:
            # Raised after the block: in it, the broad handler below would replace the reason.
            refusal = _refusal(image)
            if not refusal:
                yield image
    except Image.DecompressionBombError:
        raise _refused(path, f"more than {MOST_PIXELS:,} pixels") from None
    except Exception:  # noqa: BLE001 - Pillow raises many classes for broken files
        raise _refused(path, "does not decode") from None
    if refusal:
        raise _refused(path, refusal)


def _refusal(image: Image) -> str:
    width, height = image.size
    if width * height > MOST_PIXELS:
        return f"more than {MOST_PIXELS:,} pixels"
    if max(width, height) > MOST_ELONGATED * min(width, height):
        return f"one side more than {MOST_ELONGATED} times the other"
    # The further pictures of an MPO are previews or other views; its first one is the image.
    if image.format != "MPO" and getattr(image, "is_animated", False):
        return "several frames or pages, of which one must be chosen"
    if image.mode not in MODES:
        return f"pixels of mode {image.mode}, whose range or colours no file states"
    return ""


def _refused(path: Path, found: str) -> ImageError:
    do = "Restore or convert the file, or set data.on_bad_image to skip."
    return ImageError(f"{path}: expected an image that can be shown", found=found, do=do)
