"""Digests of a user's own image files, in a listing for each split that `prepare_examples` reads.

The main process writes the listing while it plans. A replaced image then changes an input, so reruns, the store and
jobs on a node treat images as all other inputs. `Digests` caches by size, times and inode: a later plan reads only
images that changed.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from lever_pipe.base import contents, storage
from lever_pipe.base.contents import Digests
from lever_pipe.base.errors import first
from lever_pipe.base.records import Example
from lever_pipe.experiment.data import Data
from lever_pipe.lever.datasets import _splits

log = logging.getLogger(f"snakemake.logging.{__name__}")  # also in the run's own log file
STAGE, LISTING, EXAMPLES = "prepare_examples", "image_listing", "examples"
"""The first stage that reads images, its input with their listing, and its output with their digests."""
MISSING, UNREADABLE, OTHER = "is missing", "is unreadable", "has other content"
SECONDS_BETWEEN_LINES = 15.0


def write_listing(path: Path, data: Data, split: str, digests: Digests) -> dict[str, str]:
    """Write the digest of each image of a split; return name -> digest, `MISSING` or `UNREADABLE`.

    An equal listing is not rewritten. Names are relative to the folder of images, so that data may move.

    Args:
        path: the listing.
        data: a data set with `source: files`.
        split: `train` or `eval`.
        digests: digests of files; they are saved if an image had to be read.
    """
    folder = _folder(data, split)
    by_image = _splits.asked_images(_questions(data, split), data, split, with_spares=True)
    if by_image is None:  # the reader does not list its images: take the whole folder
        names = [str(file.relative_to(folder)) for file in contents.files_below(folder)]
    else:
        names = list(by_image)
    found = _digests_of(folder, names, digests)
    if not path.is_file() or storage.read_listing(path) != found:
        storage.write_listing(path, found)
    digests.save()
    return found


def missing(data: Data, split: str, folder: Path = Path()) -> str:
    """Return the missing images of a split, each with its first question; empty if there are none."""
    images, questions = folder / _folder(data, split), folder / _questions(data, split)
    by_image = _splits.asked_images(questions, data, split) or {}
    return first(
        [
            f"{images / name} (question {question.question_id}, entry {question.entry} of {questions})"
            for name, question in by_image.items()
            if not os.path.isfile(os.path.join(images, name))  # noqa: PTH113, PTH118 - 80,000 times
        ]
    )


def differences(now: Mapping[str, str], examples: Path) -> dict[str, str]:
    """Return the images that differ from those of an examples file: name -> `MISSING`, `UNREADABLE` or `OTHER`.

    Args:
        now: name -> digest, as `write_listing` returns it.
        examples: an output of `prepare_examples`.
    """
    then = {example.image: example.image_digest for example in storage.read_rows(examples, Example)}
    states = {name: now.get(name, MISSING) for name, digest in then.items() if now.get(name, MISSING) != digest}
    return {name: state if state in (MISSING, UNREADABLE) else OTHER for name, state in states.items()}


def differences_now(data: Data, split: str, examples: Path, digests: Digests) -> dict[str, str]:
    """Return the `differences` of the present image files, by path."""
    folder = _folder(data, split)
    names = dict.fromkeys(example.image for example in storage.read_rows(examples, Example))
    found = differences(_digests_of(folder, list(names), digests), examples)
    return {str(folder / name): state for name, state in found.items()}


def _folder(data: Data, split: str) -> Path:
    return Path(getattr(data.files, f"{split}_images"))


def _questions(data: Data, split: str) -> Path:
    return Path(getattr(data.files, f"{split}_questions"))


def _digests_of(folder: Path, names: Sequence[str], digests: Digests) -> dict[str, str]:
    """Return the digests of images; write a line to the log from time to time."""
    found, due = dict[str, str](), time.monotonic() + SECONDS_BETWEEN_LINES
    for name in names:
        digest = digests.find(Path(os.path.join(folder, name)))  # noqa: PTH118 - 80,000 times
        found[name] = MISSING if digest is None else digest or UNREADABLE
        if time.monotonic() > due:
            log.warning(f"{folder}: {len(found):,} of {len(names):,} images read for their digests")
            due += SECONDS_BETWEEN_LINES
    return found
