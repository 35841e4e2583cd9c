"""VQAv2: official question and annotation files with COCO 2014 images.

The file names usually start with `v2_`; only their content matters here.

A demonstration shows the data set's own `multiple_choice_answer`.
Source: Goyal 2017 (VQAv2)
"""

from __future__ import annotations

from lever_pipe.lever.datasets._vqa_files import Annotation, read_questions, read_split
from lever_pipe.lever.datasets.protocol import ReadOptions, ReadResult, VqaFilePaths

__all__ = ["read", "read_questions"]


def read(files: VqaFilePaths, options: ReadOptions) -> ReadResult:
    """Return one split's examples in question-id order; see `protocol.Reader.read`.

    Raises:
        DataError: incomplete or contradictory files, or an annotation without
            `multiple_choice_answer`; all faults at once.
        ImageError: images that do not decode, unless they are to be skipped.
    """
    return read_split(files, options, shown_answer=_shown_answer)


def _shown_answer(annotation: Annotation) -> str | None:
    return annotation.multiple_choice_answer
