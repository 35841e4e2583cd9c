"""OK-VQA: official question and annotation files with COCO 2014 images.

The files have no single reference answer; a demonstration shows the most frequent of the annotators' answers that are
not blank.
Source: Marino 2019 (OK-VQA)
"""

from __future__ import annotations

from collections import Counter

from lever_pipe.lever.datasets._vqa_files import Annotation, asked_images, read_split
from lever_pipe.lever.datasets.protocol import ReadOptions, ReadResult, VqaFilePaths

__all__ = ["asked_images", "read"]


def read(files: VqaFilePaths, options: ReadOptions) -> ReadResult:
    """Return one split's examples in question-id order; see `protocol.Reader.read`."""
    return read_split(files, options, displayed_answer=_displayed_answer)


def _displayed_answer(annotation: Annotation) -> str:
    answers = Counter(answer.answer for answer in annotation.answers if answer.answer.strip())
    return answers.most_common(1)[0][0]  # of equally frequent answers, the first one
