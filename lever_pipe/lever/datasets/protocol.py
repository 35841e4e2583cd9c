"""Interface of a reader of question answering data.

To add a data set, add a module `lever_pipe/lever/datasets/<name>.py` with a function `read` of the
signature below; its name is then valid in `data.reader`. For data in the official VQA format, only
the displayed answer of a demonstration is needed: see `okvqa.py` and `vqav2.py`, which share
`_vqa_files.read_split`.

A reader may also have a function `asked_images`, as in `_vqa_files`, which names the images that `read` opens. The
plan of a run compares their contents; without the function, it compares all files in the image folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from lever_pipe.base.records import AnswerText, Example


@dataclass(frozen=True, slots=True)
class VqaFilePaths:
    """The raw files of one split."""

    questions: Path
    annotations: Path
    images: Path  # folder


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Settings for reading one split."""

    image_name: str  # with the field image_id, as "COCO_val2014_{image_id:012d}.jpg"
    n_answers: int = 10  # annotators a question; another count is an error
    on_bad_image: Literal["stop", "skip"] = "stop"
    answers: AnswerText = "stemmed"
    limit: int | None = None  # at least 1: readable questions; None for all
    seed: int | None = None  # of the random order that `limit` cuts; None for question-id order


class AskedImage(NamedTuple):
    """The first question about an image."""

    question_id: int
    entry: int  # its position in the question file, from 1


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The examples of one split in question-id order, and the skipped images."""

    examples: list[Example]
    skipped_images: Mapping[str, int] = field(default_factory=dict)  # file name -> its questions

    @property
    def n_skipped_questions(self) -> int:
        """Return the number of questions that were skipped because their image is unreadable."""
        return sum(self.skipped_images.values())


class Reader(Protocol):
    """A module of `lever_pipe/lever/datasets`."""

    def read(self, files: VqaFilePaths, options: ReadOptions) -> ReadResult:
        """Return one split's examples; `example_id` counts them in question-id order.

        Raises:
            DataError: the files disagree with each other or with the format; the error lists all problems.
            ImageError: images that do not decode, unless they are to be skipped.
        """
        ...
