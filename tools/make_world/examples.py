"""Examples of an embedded world, without its files."""

from __future__ import annotations

import hashlib
import io

import numpy as np
from PIL import Image

from lever_pipe.base.records import Example, ExampleId
from lever_pipe.experiment.data import WorldData
from lever_pipe.world.files import draw_image, image_name
from lever_pipe.world.items import Split, draw_split


def draw_examples(options: WorldData, split: Split) -> tuple[list[Example], dict[str, np.ndarray]]:
    """Return the examples of one split in question-id order, and the pixels by image name.

    Both equal the contents of the files that `write_raw_files` writes for the same options.
    """
    pixels: dict[str, np.ndarray] = {}
    entries = []
    for picture in draw_split(options, split):
        name = image_name(split, picture.image_id)
        pixels[name] = draw_image(options, split, picture)
        # Digests are of an image file's bytes, so encode the pixels as the file does.
        png = io.BytesIO()
        Image.fromarray(pixels[name]).save(png, format="png")
        image = {
            "image_id": picture.image_id,
            "image": name,
            "image_digest": hashlib.sha256(png.getvalue()).hexdigest(),
        }
        entries += [(question_id, image, question) for question_id, question in picture.questions.items()]
    rows = [
        Example(
            example_id=ExampleId(i),
            question_id=question_id,
            question=question.text,
            question_type=question.type,
            answers=question.answers,
            answer=max(question.answers, key=question.answers.count),
            **image,
        )
        for i, (question_id, image, question) in enumerate(sorted(entries, key=lambda row: row[0]))
    ]
    return rows, pixels
