"""Answers of the tiny LVLM to prompts of examples, by the fast forward pass."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lever_pipe.base.records import Example, ExampleId
from lever_pipe.experiment.data_config import WorldData
from lever_pipe.world.data.files import draw_image, image_name
from lever_pipe.world.data.items import Split, draw_split
from lever_pipe.world.data.lexicon import PERCEPTUAL, VOCABULARY
from lever_pipe.world.models.forward import image_features, pack, patches_of, read_turns
from lever_pipe.world.models.models import Reader
from lever_pipe.world.models.probes import Probe, relation_of, true_answers

WORDS_BY_ID = {i: word for word, i in VOCABULARY.items()}


@dataclass(frozen=True)
class Examples:
    """One split of a world in memory: rows and pixels by image name."""

    rows: list[Example]
    pixels: dict[str, np.ndarray]


def _png_digest(pixels: np.ndarray) -> str:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format="png")
    return hashlib.sha256(stream.getvalue()).hexdigest()


def draw_examples(options: WorldData, split: Split) -> Examples:
    """Return one split as the files of the same options hold it, in question-id order."""
    pixels, found = {}, []
    for picture in draw_split(options, split):
        name = image_name(split, picture.image_id)
        pixels[name] = draw_image(options, split, picture)
        digest = _png_digest(pixels[name])
        found += [(qid, picture.image_id, name, digest, q) for qid, q in picture.questions.items()]
    rows = [
        Example(
            example_id=ExampleId(i),
            question_id=question_id,
            image_id=image_id,
            image=name,
            image_digest=digest,
            question=question.text,
            question_type=question.type,
            answers=question.answers,
            answer=max(question.answers, key=question.answers.count),
        )
        for i, (question_id, image_id, name, digest, question) in enumerate(sorted(found, key=lambda f: f[0]))
    ]
    return Examples(rows, pixels)


@torch.no_grad()
def encode_images(model: Reader, pixels: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Return the visual tokens [4, D] of every named image."""
    features = image_features(model.model.visual, patches_of(np.stack(list(pixels.values()))))
    return dict(zip(pixels, features, strict=True))


@torch.no_grad()
def answer_prompts(model: Reader, probes: Sequence[Probe], features: Mapping[str, Tensor]) -> list[str]:
    """Return the first word of every answer; all prompts have the same number of shots."""
    words: list[str] = []
    for start in range(0, len(probes), 256):
        batch = probes[start : start + 256]
        packed = pack(
            [[*((d.question, d.answer) for d in row.demonstrations), (row.query.question, None)] for row in batch]
        )
        shown = [[*(d.image for d in row.demonstrations), row.query.image] for row in batch]
        visual = torch.stack([torch.stack([features[name] for name in row]) for row in shown])
        output = read_turns(model, packed, visual, packed.ask_slots[:, -1:])
        words += [WORDS_BY_ID.get(i, "") for i in output.logits[:, 0].argmax(-1).tolist()]
    return words


def answer_probes(
    model: Reader, probes: Mapping[str, Sequence[Probe]], pixels: Mapping[str, np.ndarray]
) -> dict[str, list[str]]:
    """Return one answer per prompt of every probe; `pixels` holds every image by name."""
    features = encode_images(model, pixels)
    return {name: answer_prompts(model, rows, features) for name, rows in probes.items()}


def perceptual_probe(rows: Sequence[Example]) -> list[Probe]:
    """Return zero-shot prompts of the questions that the image alone answers."""
    truths = true_answers(rows)
    names = {relation.name for relation in PERCEPTUAL}
    return [Probe(row, (), truths[row.question_type]) for row in rows if relation_of(row) in names]
