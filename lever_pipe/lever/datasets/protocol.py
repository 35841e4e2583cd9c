"""What a reader of question answering data offers.

To add a data set, add a module `lever_pipe/lever/datasets/<name>.py` with a function `read` of the
signature below; its name is then valid in `data.reader`. Data in the official VQA format need only
the answer that a demonstration shows: see `okvqa.py` and `vqav2.py`, which share
`_vqa_files.read_split`.

A reader may also have a function `asked_images`, as `_vqa_files` has it, which names the images that `read` opens. The
plan of a run compares their contents; without the function, it compares all files in the folder of images.
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
    """How one split is read."""

    image_name: str  # with the field image_id, as "COCO_val2014_{image_id:012d}.jpg"
    n_answers: int = 10  # annotators a question; another count is a problem
    on_bad_image: Literal["stop", "skip"] = "stop"
    answers: AnswerText = "stemmed"
    limit: int | None = None  # at least 1: readable questions; None for all
    seed: int | None = None  # of the drawn order in which the limit is reached; None for question-id order


class AskedImage(NamedTuple):
    """The first question about an image."""

    question_id: int
    entry: int  # its place in the question file, from 1


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The examples of one split in question-id order, and what was skipped."""

    examples: list[Example]
    skipped_images: Mapping[str, int] = field(default_factory=dict)  # file name -> its questions

    @property
    def n_skipped_questions(self) -> int:
        """Return how many questions fell out because their image is unreadable."""
        return sum(self.skipped_images.values())


class Reader(Protocol):
    """A module of `lever_pipe/lever/datasets`."""

    def read(self, files: VqaFilePaths, options: ReadOptions) -> ReadResult:
        """Return one split's examples; `example_id` counts them in question-id order.

        Raises:
            DataError: the files disagree with each other or with the format; all problems at once.
            ImageError: images that do not decode, unless they are to be skipped.
        """
        ...
