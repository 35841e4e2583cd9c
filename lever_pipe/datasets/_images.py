"""The images of one split: found, hashed and decoded once each."""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from PIL import Image

from lever_pipe.datasets._faults import Faults
from lever_pipe.errors import DataError, ImageError

log = logging.getLogger(__name__)

MOST_PIXELS = 2**25  # of an image; one of twice as many takes seconds to decode, and no data set needs it


class _HasImage(Protocol):
    @property
    def image_id(self) -> int: ...


Q = TypeVar("Q", bound=_HasImage)


class Images:
    """Files under one folder, named by image id."""

    def __init__(self, folder: Path, template: str) -> None:
        _check_template(template)
        self._folder = folder
        self._template = template
        self._digests: dict[int, str | None] = {}  # None: does not decode
        self.skipped: dict[str, int] = {}

    def name(self, image_id: int) -> str:
        """Return the file name of an image."""
        return self._template.format(image_id=image_id)

    def digest(self, image_id: int) -> str:
        """Return the sha256 of a readable image's bytes."""
        digest = self._inspect(image_id)
        assert digest is not None
        return digest

    def find(self, image_ids: Iterable[int], faults: Faults) -> None:
        """Record every image that is no file."""
        if not self._folder.is_dir():
            faults.add("missing image folder", str(self._folder))
            return
        missing = [i for i in image_ids if not _is_file(self._folder / self.name(i))]
        faults.extend(f"missing image in {self._folder}", map(self.name, missing))

    def readable(self, questions: list[Q], on_bad_image: Literal["stop", "skip"], limit: int | None) -> list[Q]:
        """Return the first `limit` questions whose image decodes.

        Raises:
            DataError: an image beyond the first `limit` questions is needed and missing.
            ImageError: images do not decode and are not to be skipped; the first few are named.
        """
        kept: list[Q] = []
        bad: dict[str, int] = {}
        for question in questions:
            if len(kept) + (sum(bad.values()) if on_bad_image == "stop" else 0) == limit:
                break
            if self._inspect(question.image_id) is None:
                name = self.name(question.image_id)
                bad[name] = bad.get(name, 0) + 1
            else:
                kept.append(question)
        if bad and on_bad_image == "stop":
            raise _unreadable(self._folder, bad)
        if bad:
            n_questions = sum(bad.values())
            log.warning("skipped %d questions of unreadable images %s", n_questions, list(bad))
        self.skipped = bad
        return kept

    def _inspect(self, image_id: int) -> str | None:
        if image_id not in self._digests:
            self._digests[image_id] = digest_of_image(self._folder / self.name(image_id))
        return self._digests[image_id]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


def digest_of_image(path: Path) -> str | None:
    """Return the sha256 of an image file's bytes, or None when the image does not decode or has too many pixels.

    Raises:
        DataError: there is no such file.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError("expected an image for every question", found=f"no {path}", do="Restore the file.") from None
    except OSError:
        return None
    try:
        with Image.open(io.BytesIO(content)) as image:
            if image.width * image.height > MOST_PIXELS:
                return None
            # A JPEG decoder may scale as it decodes: it still reads all bytes but computes less.
            image.draft(None, (max(1, image.width // 8), max(1, image.height // 8)))
            image.load()
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError):
        return None
    return hashlib.sha256(content).hexdigest()


def _unreadable(folder: Path, bad: dict[str, int]) -> ImageError:
    faults = Faults()
    faults.extend("does not decode", bad)
    return ImageError(
        f"expected readable images in {folder}",
        found=f"\n{faults.describe()}\n",
        do='Restore the files, or set data.on_bad_image to "skip".',
    )


def _check_template(template: str) -> None:
    try:
        distinct = template.format(image_id=1) != template.format(image_id=2)
    except (KeyError, IndexError, ValueError, AttributeError):
        distinct = False
    if not distinct:
        raise DataError(
            "expected an image name with the one field image_id",
            found=f"'{template}'",
            do="Write for example COCO_val2014_{image_id:012d}.jpg.",
        )
