"""VQAv2: official question and annotation files with COCO 2014 images.

A demonstration shows the data set's own `multiple_choice_answer`; an annotation without one is an error.
Source: Goyal 2017 (VQAv2)
"""

from __future__ import annotations

from lever_pipe.lever.datasets._vqa_files import asked_images, read_split
from lever_pipe.lever.datasets.protocol import ReadOptions, ReadResult, VqaFilePaths

__all__ = ["asked_images", "read"]


def read(files: VqaFilePaths, options: ReadOptions) -> ReadResult:
    """Return one split's examples in question-id order; see `protocol.Reader.read`."""
    return read_split(files, options, displayed_answer=lambda annotation: annotation.multiple_choice_answer)
