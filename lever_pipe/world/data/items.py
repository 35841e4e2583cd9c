"""Questions of one world: its knowledge, its scenes and ten annotators a question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lever_pipe.base.seeding import generator
from lever_pipe.experiment.config import WorldData
from lever_pipe.world.data.lexicon import (
    COLORS,
    COUNTS,
    KINDS,
    KNOWLEDGE,
    PERCEPTUAL,
    RELATIONS,
    Attribute,
    Relation,
    question_type,
)

Split = Literal["train", "val"]

N_ANNOTATORS = 10
SINGLE_SHARE = 0.7  # scenes with one shape; two and three share the rest
SECOND_ANSWER_SHARE = 0.7  # of the dissenting votes; the others are any answer of the relation
# An annotator dissents with a probability that differs by question: Beta(1.2, b).
DISSENT_A, DISSENT_B_KNOWLEDGE, DISSENT_B_PERCEPTUAL = 1.2, 5.0, 14.0
MAX_IMAGE_ID = 580_000
FLIPPED_SHARE = 0.05
"""Of the knowledge questions; their majority is at the usual confusion."""
SHARED_IMAGE_SHARE = 0.10
"""Of the questions; they sit in pairs on one image."""


@dataclass(frozen=True)
class Scene:
    """What an image shows."""

    kind: str
    color: str
    count: str

    def value(self, attribute: Attribute) -> str:
        """Return the value of one attribute."""
        return str(getattr(self, attribute))


@dataclass(frozen=True)
class Knowledge:
    """The facts of one world, by relation name: key to answer, and answer to its usual confusion."""

    facts: Mapping[str, Mapping[str, str]]
    confusions: Mapping[str, Mapping[str, str]]

    def truth(self, relation: Relation, scene: Scene) -> str:
        """Return the answer of `relation` for `scene`."""
        return self.facts[relation.name][scene.value(relation.key)]


@dataclass(frozen=True)
class AnnotatedQuestion:
    """One question with the raw answers of ten annotators."""

    relation: Relation
    key: str
    text: str
    truth: str
    answers: tuple[str, ...]

    @property
    def type(self) -> str:
        """Relation and key, for example "material:ball"."""
        return question_type(self.relation, self.key)


@dataclass(frozen=True)
class Picture:
    """One image and the questions about it, by question id."""

    image_id: int
    scene: Scene
    questions: Mapping[int, AnnotatedQuestion]


def _draw_facts(relation: Relation, n_active: int, rng: np.random.Generator) -> dict[str, str]:
    if not relation.is_knowledge:
        return dict(zip(relation.keys, relation.answers, strict=True))
    active = rng.permutation(relation.answers)[:n_active]
    n_keys = len(relation.keys)
    # Every active answer is used once before any is used twice at random.
    used = [*active[:n_keys], *rng.choice(active, max(0, n_keys - n_active))]
    return dict(zip(relation.keys, (str(a) for a in rng.permutation(used)), strict=True))


def _draw_confusions(relation: Relation, rng: np.random.Generator) -> dict[str, str]:
    cycle = [str(answer) for answer in rng.permutation(relation.answers)]
    return dict(zip(cycle, cycle[1:] + cycle[:1], strict=True))


def draw_knowledge(mapping_seed: int, n_active_answers: int) -> Knowledge:
    """Return the facts of the world `mapping_seed`; a relation uses `n_active_answers` answers."""
    facts, confusions = {}, {}
    for relation in RELATIONS:
        rng = generator(mapping_seed, "knowledge", relation.name)
        facts[relation.name] = _draw_facts(relation, n_active_answers, rng)
        confusions[relation.name] = _draw_confusions(relation, rng)
    return Knowledge(facts, confusions)


def draw_scene(rng: np.random.Generator) -> Scene:
    """Return a scene with uniform kind and colour, mostly of one shape."""
    count = COUNTS[0] if rng.random() < SINGLE_SHARE else COUNTS[int(rng.integers(1, len(COUNTS)))]
    return Scene(KINDS[rng.integers(len(KINDS))], COLORS[rng.integers(len(COLORS))], count)


def draw_relation(perceptual_share: float, rng: np.random.Generator) -> Relation:
    """Return a relation, perceptual with probability `perceptual_share`."""
    family = PERCEPTUAL if rng.random() < perceptual_share else KNOWLEDGE
    return family[rng.integers(len(family))]


def annotate(
    relation: Relation, truth: str, confusion: str, flipped_share: float, rng: np.random.Generator
) -> tuple[str, ...]:
    """Return ten answers: mostly `truth`, else mostly `confusion`, else any of the relation.

    A share `flipped_share` of the knowledge questions has its majority at `confusion` instead.
    """
    is_flipped = relation.is_knowledge and rng.random() < flipped_share
    main, second = (confusion, truth) if is_flipped else (truth, confusion)
    b = DISSENT_B_KNOWLEDGE if relation.is_knowledge else DISSENT_B_PERCEPTUAL
    dissent = rng.beta(DISSENT_A, b)
    votes = []
    for _ in range(N_ANNOTATORS):
        if rng.random() >= dissent:
            votes.append(main)
        elif rng.random() < SECOND_ANSWER_SHARE:
            votes.append(second)
        else:
            votes.append(relation.answers[rng.integers(len(relation.answers))])
    return tuple(votes)


def _draw_question(
    scene: Scene, relation: Relation, knowledge: Knowledge, rng: np.random.Generator
) -> AnnotatedQuestion:
    truth = knowledge.truth(relation, scene)
    confusion = knowledge.confusions[relation.name][truth]
    answers = annotate(relation, truth, confusion, FLIPPED_SHARE, rng)
    text = relation.questions[rng.integers(len(relation.questions))]
    return AnnotatedQuestion(relation, scene.value(relation.key), text, truth, answers)


def _draw_picture_questions(
    n_questions: int, knowledge: Knowledge, perceptual_share: float, rng: np.random.Generator
) -> tuple[Scene, list[AnnotatedQuestion]]:
    relations: list[Relation] = []
    while len(relations) < n_questions:
        relation = draw_relation(perceptual_share, rng)
        if relation not in relations:
            relations.append(relation)
    scene = draw_scene(rng)
    if any(relation.key == "count" for relation in relations):
        # Where the count is asked for, all counts are equally likely.
        scene = Scene(scene.kind, scene.color, COUNTS[rng.integers(len(COUNTS))])
    return scene, [_draw_question(scene, relation, knowledge, rng) for relation in relations]


def draw_split(options: WorldData, split: Split) -> list[Picture]:
    """Return the pictures of one split; their questions number exactly `options.n_train` or `options.n_eval`.

    A share of the questions sits in pairs on one image. Image ids are random and never occur in both splits; a question
    id is image id * 10 + a digit, as in COCO.
    """
    n_questions = options.n_train if split == "train" else options.n_eval
    n_pairs = round(n_questions * SHARED_IMAGE_SHARE / 2)
    n_images = n_questions - n_pairs
    knowledge = draw_knowledge(options.mapping_seed, options.n_active_answers)
    rng = generator(options.seed, "world", split)
    # Odd ids for train and even ids for val keep the splits apart whatever their sizes.
    halves = rng.choice(MAX_IMAGE_ID // 2, size=n_images, replace=False)
    image_ids = 2 * halves + (1 if split == "train" else 2)
    pictures = []
    for i, image_id in enumerate(int(value) for value in image_ids):
        n_here = 2 if i < n_pairs else 1
        scene, questions = _draw_picture_questions(n_here, knowledge, options.perceptual_share, rng)
        digits = rng.permutation(10)[:n_here]
        ids = [image_id * 10 + int(digit) for digit in digits]
        pictures.append(Picture(image_id, scene, dict(zip(ids, questions, strict=True))))
    return pictures
