"""OK-VQA: official question and annotation files with COCO 2014 images.

The files carry no single reference answer; a demonstration shows the most frequent of the
annotators' answers that are not blank.
Source: Marino 2019 (OK-VQA)
"""

from __future__ import annotations

from lever_pipe.lever.datasets._vqa_files import Annotation, most_frequent, read_questions, read_split
from lever_pipe.lever.datasets.protocol import ReadOptions, ReadResult, VqaFilePaths

__all__ = ["read", "read_questions"]


def read(files: VqaFilePaths, options: ReadOptions) -> ReadResult:
    """Return one split's examples in question-id order; see `protocol.Reader.read`.

    Raises:
        DataError: incomplete or contradictory files; all faults at once.
        ImageError: images that do not decode, unless they are to be skipped.
    """
    return read_split(files, options, shown_answer=_shown_answer)


def _shown_answer(annotation: Annotation) -> str:
    return most_frequent(answer.answer for answer in annotation.answers if answer.answer.strip())
