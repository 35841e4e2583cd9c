"""What an image file shows: the one reading that checks, embeddings and prompts share, or the reason why there is none.

Taken: BMP, GIF, JPEG (and MPO, its first picture), JPEG 2000, PNG, PPM, TIFF, WebP.

* The orientation that EXIF states is applied.
* Palettes, grey, bilevel, YCbCr and HSV become the RGB that they stand for; CMYK becomes (1 - C)(1 - K) and so on.
  Colour profiles are left alone, as everywhere in the field.
* Transparent pixels stand on white, as in Qwen2.5-VL's own utilities.
* Refused, as nothing states what should be seen: animations and files of several pages; grey of 16 bits, 32-bit and
  floating-point pixels, whose range no file tells; Lab. Refused by size: more than `MOST_PIXELS`, or a longer side
  beyond `MOST_ELONGATED` times the shorter, where Qwen2.5-VL's image processor stops.
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

# As Pillow names them; its reader of JPEG takes MPO too.
FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV")
MOST_PIXELS = 2**25  # of an image; one of twice as many takes seconds to decode, and no data set needs it
MOST_ELONGATED = 200
ORIENTATION, SIDEWAYS = 0x0112, (5, 6, 7, 8)


def digest_of(path: Path) -> str:
    """Return the sha256 of the bytes of an image that can be shown.

    Raises:
        ImageError: it cannot; `found` says why.
    """
    content = _bytes(path)
    with _opening(path, content) as image:
        # A JPEG decoder may scale as it decodes: it still reads all bytes but computes less.
        image.draft(None, (max(1, image.width // 8), max(1, image.height // 8)))
        image.load()
    return hashlib.sha256(content).hexdigest()


def read_rgb(path: Path) -> Image:
    """Return the picture of a file in RGB.

    Raises:
        ImageError: no such file, or one that shows nothing.
    """
    return rgb(path, _bytes(path))


def rgb(path: Path, content: bytes) -> Image:
    """Return the picture that a file's bytes show in RGB.

    Raises:
        ImageError: they show none.
    """
    from PIL import Image, ImageOps

    with _opening(path, content) as image:
        upright = ImageOps.exif_transpose(image)
        if upright.has_transparency_data:
            layer = upright.convert("RGBA")
            upright = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
        return upright.convert("RGB")


def data_url(path: Path, content: bytes) -> str:
    """Return the picture that a file's bytes show as a data URL: the bytes, or a PNG where a reader may show others.

    Raises:
        ImageError: they show none.
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
        ImageError: as far as the file's beginning tells.
    """
    with _opening(path, content) as image:
        # Pillow turns a TIFF itself.
        turned = image.format != "TIFF" and image.getexif().get(ORIENTATION) in SIDEWAYS
        return (image.height, image.width) if turned else (image.width, image.height)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _refused(path, error.strerror or str(error)) from None


@contextmanager
def _opening(path: Path, content: bytes) -> Iterator[Image]:
    """Open an image that can be shown, as far as its beginning tells; what breaks inside is a broken image."""
    from PIL import Image

    refusal = ""
    try:
        with Image.open(BytesIO(content), formats=FORMATS) as image:
            refusal = _refusal(image)
            if not refusal:
                yield image
    except Image.DecompressionBombError:
        raise _refused(path, f"more than {MOST_PIXELS:,} pixels") from None
    except Exception:  # noqa: BLE001 - Pillow raises whatever a broken file leads to
        raise _refused(path, "does not decode") from None
    if refusal:
        raise _refused(path, refusal)


def _refusal(image: Image) -> str:
    width, height = image.size
    if width * height > MOST_PIXELS:
        return f"more than {MOST_PIXELS:,} pixels"
    if max(width, height) > MOST_ELONGATED * min(width, height):
        return f"one side more than {MOST_ELONGATED} times the other"
    if image.format != "MPO" and getattr(image, "is_animated", False):
        return "several frames or pages, of which one must be chosen"
    if image.mode not in MODES:
        return f"pixels of mode {image.mode}, whose range or colours no file states"
    return ""


def _refused(path: Path, found: str) -> ImageError:
    do = "Restore or convert the file, or set data.on_bad_image to skip."
    return ImageError(f"{path}: expected an image that can be shown", found=found, do=do)
