"""The images of one split: found, hashed and decoded once each."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from lever_pipe.base import images
from lever_pipe.base.errors import DataError, ImageError
from lever_pipe.lever.datasets._faults import Faults

log = logging.getLogger(__name__)


class _HasImage(Protocol):
    @property
    def image_id(self) -> int: ...


Q = TypeVar("Q", bound=_HasImage)


class ImageFolder:
    """Files under one folder, named by image id."""

    def __init__(self, folder: Path, template: str) -> None:
        self._folder = folder
        self._template = template
        self._digests: dict[int, str] = {}
        self._refusals: dict[int, str] = {}  # why an image cannot be shown
        self.skipped: dict[str, int] = {}

    def name(self, image_id: int) -> str:
        """Return the file name of an image."""
        return self._template.format(image_id=image_id)

    def digest(self, image_id: int) -> str:
        """Return the sha256 of the bytes of an image that was found readable."""
        return self._digests[image_id]

    def find(self, image_ids: Iterable[int], faults: Faults) -> None:
        """Record every image that is no file."""
        if not self._folder.is_dir():
            faults.add("missing image folder", str(self._folder))
            return
        missing = [i for i in image_ids if not _is_file(self._folder / self.name(i))]
        faults.extend(f"missing image in {self._folder}", map(self.name, missing))

    def readable(self, questions: list[Q], on_bad_image: Literal["stop", "skip"], limit: int | None) -> list[Q]:
        """Return the first `limit` questions, in their order, whose image can be shown.

        Raises:
            DataError: an image beyond the first `limit` questions is needed and missing.
            ImageError: images cannot be shown and are not to be skipped; the first few are named by reason.
        """
        kept: list[Q] = []
        bad: dict[str, int] = {}
        faults = Faults()
        for question in questions:
            if len(kept) + (sum(bad.values()) if on_bad_image == "stop" else 0) == limit:
                break
            if refusal := self._refusal(question.image_id):
                name = self.name(question.image_id)
                if name not in bad:
                    faults.add(refusal, name)
                bad[name] = bad.get(name, 0) + 1
            else:
                kept.append(question)
        if bad and on_bad_image == "stop":
            raise ImageError(
                f"expected readable images in {self._folder}",
                found=f"\n{faults}\n",
                do='Restore or convert the files, or set data.on_bad_image to "skip".',
            )
        if bad:
            n_questions = sum(bad.values())
            log.warning("skipped %d questions of unreadable images:\n%s", n_questions, faults)
        self.skipped = bad
        return kept

    def _refusal(self, image_id: int) -> str:
        """Return why an image cannot be shown; empty for one that can. Each is looked at once."""
        if image_id not in self._digests and image_id not in self._refusals:
            path = self._folder / self.name(image_id)
            if not _is_file(path):
                where = "expected an image for every question"
                raise DataError(where, found=f"no {path}", do="Restore the file.")
            try:
                self._digests[image_id] = images.digest_of(path)
            except ImageError as fault:
                self._refusals[image_id] = fault.found
        return self._refusals.get(image_id, "")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False
