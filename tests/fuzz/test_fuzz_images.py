"""Images that are cut, flipped or larger than memory are named, and none of them stops the others."""

from __future__ import annotations

import hashlib
import io
import struct
import zlib
from pathlib import Path

import pytest
from bad_input import harmed_bytes, inputs, law_of
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lever_pipe.base.images import digest_of
from lever_pipe.lvlms.protocol import ImageSource


def encoded(kind: str, mode: str = "RGB") -> bytes:
    stream = io.BytesIO()
    image = Image.linear_gradient("L").resize((24, 16)).convert(mode)
    image.save(stream, kind)
    return stream.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(width: int, height: int) -> bytes:
    """Return a PNG of a few kilobytes that states this size and unpacks to it, row by row."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 10**6)) + chunk(b"IEND", b"")


pytestmark = pytest.mark.filterwarnings("ignore:Image size")  # up to twice its limit Pillow only warns: half a gigabyte
KINDS = {"JPEG": encoded("JPEG"), "PNG": encoded("PNG"), "GIF": encoded("GIF", "P"), "palette": encoded("PNG", "P")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("images")


@pytest.mark.parametrize("kind", KINDS)
@inputs
@given(data=st.data())
def test_an_image_is_decoded_whole_or_told(folder: Path, kind: str, data: st.DataObject) -> None:
    path = folder / "image"
    path.write_bytes(content := data.draw(harmed_bytes(KINDS[kind])))
    digest = hashlib.sha256(content).hexdigest()
    checked, found = law_of(f"image {kind}", lambda: digest_of(path), names=str(path))
    if checked:
        assert found == digest
    taken, image = law_of(f"open {kind}", lambda: opened(path, digest), names=str(path))
    assert taken is checked
    if taken:
        assert image.mode == "RGB"
        assert image.size == ImageSource({digest: path}).size(digest)


def opened(path: Path, digest: str) -> Image.Image:
    return ImageSource({digest: path}).open(digest)


@pytest.mark.parametrize("size", [(60_000, 60_000), (12_000, 12_000), (2**31 - 1, 1), (1, 2**31 - 1)])
def test_a_bomb_is_told_before_it_is_unpacked(folder: Path, size: tuple[int, int]) -> None:
    path = folder / "bomb.png"
    path.write_bytes(content := bomb(*size))
    for read in (lambda: digest_of(path), lambda: opened(path, hashlib.sha256(content).hexdigest())):
        taken, _ = law_of("bomb", read, names=str(path))
        assert not taken
