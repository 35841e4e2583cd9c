"""Raw files of one embedded world in the official format of OK-VQA or VQAv2."""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lever_pipe.base.atomic import write_folder
from lever_pipe.base.records import Example, ExampleId
from lever_pipe.base.seeding import generator
from lever_pipe.base.storage import write_json
from lever_pipe.experiment.data import WorldData
from lever_pipe.world.items import AnnotatedQuestion, Picture, Split, draw_split
from lever_pipe.world.lexicon import RELATIONS, question_type
from lever_pipe.world.scenes import render

LAYOUTS = {"okvqa": "OK-VQA", "vqav2": "VQAv2"}
INFO = {"description": "", "url": "", "version": "1.0"}
LICENSE = {"name": "CC0 1.0", "url": "https://creativecommons.org/publicdomain/zero/1.0/"}


def subset(split: Split) -> str:
    """Return the COCO name of a split, "train2014" or "val2014"."""
    return f"{split}2014"


def image_name(split: Split, image_id: int) -> str:
    """Return the file name of an image, for example "COCO_val2014_000000000042.png"."""
    return f"COCO_{subset(split)}_{image_id:012d}.png"


def draw_image(options: WorldData, split: Split, picture: Picture) -> np.ndarray:
    """Return the pixels of a picture, uint8 [56, 56, 3]; every image has its own random stream.

    A copy has the stream of its original, and each of its values differs from the original by at most one.
    """
    rng = generator(options.seed, "pixels", split, picture.copy_of or picture.image_id)
    scene = picture.scene
    second = (scene.second.kind, scene.second.color) if scene.second else None
    pixels = np.asarray(render(scene.kind, scene.color, scene.count, rng, second=second, blur=options.blur))
    if picture.copy_of is None:
        return pixels
    noise = generator(options.seed, "copy", split, picture.image_id).integers(-1, 1, size=pixels.shape, endpoint=True)
    return np.clip(pixels + noise, 0, 255).astype(np.uint8)


def _annotation(picture: Picture, question_id: int, question: AnnotatedQuestion, layout: str) -> dict[str, Any]:
    common = {
        "image_id": picture.image_id,
        "answer_type": "number" if question.relation.key == "count" else "other",
        "question_type": question.type,
        "question_id": question_id,
    }
    answers = [
        {"answer_id": i, "answer_confidence": "yes", "answer": answer}
        for i, answer in enumerate(question.answers, start=1)
    ]
    if layout == "vqav2":
        most = Counter(question.answers).most_common(1)[0][0]
        return {**common, "answers": answers, "multiple_choice_answer": most}
    return {**common, "answers": [{**answer, "raw_answer": answer["answer"]} for answer in answers], "confidence": 3}


def build_documents(pictures: list[Picture], split: Split, options: WorldData) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the question and the annotation document of one split, with rows in the same random order."""
    rows = [(picture, qid) for picture in pictures for qid in picture.questions]
    order = generator(options.seed, "row order", split).permutation(len(rows))
    rows = [rows[i] for i in order]
    common = {
        "info": INFO | {"description": f"Embedded world in the format of {LAYOUTS[options.layout]}"},
        "license": LICENSE,
        "data_type": "mscoco",
        "data_subtype": subset(split),
    }
    questions = [
        {"image_id": picture.image_id, "question": picture.questions[qid].text, "question_id": qid}
        for picture, qid in rows
    ]
    annotations = [_annotation(picture, qid, picture.questions[qid], options.layout) for picture, qid in rows]
    document: dict[str, Any] = {**common, "task_type": "Open-Ended", "questions": questions}
    if options.layout == "vqav2":
        return document, {**common, "annotations": annotations}
    types = {question_type(r, key): f"{r.name} by {r.key}" for r in RELATIONS for key in r.keys}
    types |= {q.type: f"{q.relation.name} by {q.relation.key}" for p in pictures for q in p.questions.values()}
    return document, {**common, "annotations": annotations, "question_types": types}


def write_raw_files(options: WorldData, split: Split, *, questions: Path, annotations: Path, images: Path) -> None:
    """Write questions, annotations and image folder of one split of a world.

    Equal options give equal bytes with the same version of Pillow; the size of the other split has no effect. Files and
    folders are written atomically.
    """
    pictures = draw_split(options, split)
    document, annotated = build_documents(pictures, split, options)

    def draw_into(folder: Path) -> None:
        for picture in pictures:
            image = Image.fromarray(draw_image(options, split, picture))
            image.save(folder / image_name(split, picture.image_id))

    write_folder(images, draw_into)
    write_json(questions, document)
    write_json(annotations, annotated)


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
