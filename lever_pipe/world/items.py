"""Questions of one embedded world: its knowledge, its scenes and ten annotators per question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np

from lever_pipe.base.seeding import generator
from lever_pipe.experiment.data import WorldData
from lever_pipe.world.lexicon import (
    COLORS,
    COUNTS,
    GUESSES,
    KINDS,
    KNOWLEDGE,
    PERCEPTUAL,
    RELATIONS,
    Attribute,
    Relation,
    question_type,
)

Split = Literal["train", "val"]
T = TypeVar("T")

N_ANNOTATORS = 10
SINGLE_SHARE = 0.7  # scenes with one shape; the others have two or three
SECOND_ANSWER_SHARE = 0.7  # of the dissenting votes; the others are random answers of the relation
# The probability of a dissenting annotator is different for each question: Beta(1.2, b).
DISSENT_A, DISSENT_B_KNOWLEDGE, DISSENT_B_PERCEPTUAL = 1.2, 5.0, 14.0
MAX_IMAGE_ID = 580_000
SHARED_IMAGE_SHARE = 0.10
"""Share of the questions that are in pairs about one image, if `questions_per_image` is 1."""


@dataclass(frozen=True)
class Scene:
    """The content of an image."""

    kind: str
    color: str
    count: str
    second: Scene | None = None
    """The second of two different things; `count` is then two."""

    def value(self, attribute: Attribute) -> str:
        """Return the value of one attribute."""
        return str(getattr(self, attribute))


@dataclass(frozen=True)
class Knowledge:
    """The facts of one world, by relation name: key to answer, and answer to its usual confusion."""

    facts: Mapping[str, Mapping[str, str]]
    confusions: Mapping[str, Mapping[str, str]]

    def truth(self, relation: Relation, scene: Scene) -> str:
        """Return the answer of `relation` for `scene`; two different things in a scene have the same answer."""
        return self.facts[relation.name][scene.value(relation.key)]

    def others_alike(self, relation: Relation, scene: Scene) -> list[str]:
        """Return the other keys of `relation` with the same answer as `scene`."""
        value, truth = scene.value(relation.key), self.truth(relation, scene)
        return [key for key, answer in self.facts[relation.name].items() if answer == truth and key != value]


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
    copy_of: int | None = None
    """Id of the original if this image is a near duplicate."""


def _draw_facts(relation: Relation, n_active: int, rng: np.random.Generator) -> dict[str, str]:
    if not relation.is_knowledge:
        return dict(zip(relation.keys, relation.answers, strict=True))
    active = rng.permutation(relation.answers)[:n_active]
    n_keys = len(relation.keys)
    # Use every active answer once; the remaining keys get random ones of these.
    used = [*active[:n_keys], *rng.choice(active, max(0, n_keys - n_active))]
    return dict(zip(relation.keys, (str(a) for a in rng.permutation(used)), strict=True))


def _draw_confusions(relation: Relation, rng: np.random.Generator) -> dict[str, str]:
    cycle = [str(answer) for answer in rng.permutation(relation.answers)]
    return dict(zip(cycle, cycle[1:] + cycle[:1], strict=True))


def draw_knowledge(options: WorldData) -> Knowledge:
    """Return the facts of the world `options.mapping_seed`: random ones, and guesses of the released LVLM."""
    facts, confusions = {}, {}
    for relation in RELATIONS:
        rng = generator(options.mapping_seed, "knowledge", relation.name)
        sampled = _draw_facts(relation, options.n_active_answers, rng)
        facts[relation.name] = sampled | _draw_guessed(relation, options)
        confusions[relation.name] = _draw_confusions(relation, rng)
    return Knowledge(facts, confusions)


def _draw_guessed(relation: Relation, options: WorldData) -> dict[str, str]:
    guesses = dict(zip(relation.keys, GUESSES[relation.name], strict=True)) if relation.name in GUESSES else {}
    # Its own stream: the share changes neither the random facts nor, if it grows, the previous guesses.
    order = generator(options.mapping_seed, "guessable", relation.name).permutation(list(guesses))
    return {str(key): guesses[key] for key in order[: round(options.guessable_share * len(order))]}


def _pick(values: Sequence[T], skew: float, rng: np.random.Generator) -> T:
    """Return one of the values; the weight of the r-th value (from 1) is r to the power of -`skew`."""
    if not skew:
        return values[int(rng.integers(len(values)))]
    weights = np.arange(1, len(values) + 1) ** -skew
    return values[int(rng.choice(len(values), p=weights / weights.sum()))]


def _draw_scene(skew: float, rng: np.random.Generator) -> Scene:
    """Return a scene, mostly of one shape."""
    count = COUNTS[0] if rng.random() < SINGLE_SHARE else COUNTS[int(rng.integers(1, len(COUNTS)))]
    return Scene(_pick(KINDS, skew, rng), _pick(COLORS, skew, rng), count)


def _draw_relation(options: WorldData, rng: np.random.Generator) -> Relation:
    family = PERCEPTUAL if rng.random() < options.perceptual_share else KNOWLEDGE
    return _pick([relation for relation in family if relation.name in options.relations], options.skew, rng)


def annotate(
    relation: Relation, truth: str, confusion: str, options: WorldData, rng: np.random.Generator
) -> tuple[str, ...]:
    """Return ten answers: mostly `truth`, otherwise mostly `confusion`, otherwise any answer of the relation.

    For a share `options.flipped_share` of the knowledge questions, `truth` and `confusion` are exchanged.
    """
    is_flipped = relation.is_knowledge and rng.random() < options.flipped_share
    main, second = (confusion, truth) if is_flipped else (truth, confusion)
    b = DISSENT_B_KNOWLEDGE if relation.is_knowledge else DISSENT_B_PERCEPTUAL
    dissent = rng.beta(DISSENT_A, b / options.dissent)
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
    scene: Scene, relation: Relation, knowledge: Knowledge, options: WorldData, rng: np.random.Generator
) -> AnnotatedQuestion:
    truth = knowledge.truth(relation, scene)
    confusion = knowledge.confusions[relation.name][truth]
    answers = annotate(relation, truth, confusion, options, rng)
    text = relation.questions[rng.integers(len(relation.questions))]
    key = scene.value(relation.key)
    if scene.second is not None:
        # Sorted, for example "ball+star", because the order of the two things has no meaning.
        key = "+".join(sorted((key, scene.second.value(relation.key)), key=relation.keys.index))
    return AnnotatedQuestion(relation, key, text, truth, answers)


def _add_another(
    scene: Scene, relation: Relation, knowledge: Knowledge, skew: float, rng: np.random.Generator
) -> Scene:
    """Return the scene with a second thing that has the same answer; unchanged if there is none."""
    keys = knowledge.others_alike(relation, scene)
    if not keys:
        return scene
    other, key = _draw_scene(skew, rng), keys[int(rng.integers(len(keys)))]
    second = replace(other, kind=key) if relation.key == "kind" else replace(other, color=key)
    return replace(scene, count=COUNTS[1], second=second)


def _is_composite(relations: Sequence[Relation], options: WorldData, rng: np.random.Generator) -> bool:
    may_be = bool(options.composite_share) and len(relations) == 1 and relations[0].is_knowledge
    return may_be and rng.random() < options.composite_share


def _draw_picture_questions(
    n_questions: int, knowledge: Knowledge, options: WorldData, rng: np.random.Generator
) -> tuple[Scene, list[AnnotatedQuestion]]:
    relations: list[Relation] = []
    while len(relations) < n_questions:
        relation = _draw_relation(options, rng)
        if relation not in relations:
            relations.append(relation)
    scene = _draw_scene(options.skew, rng)
    if any(relation.key == "count" for relation in relations):
        # For a question about the count, all counts are equally likely.
        scene = replace(scene, count=COUNTS[rng.integers(len(COUNTS))])
    elif _is_composite(relations, options, rng):
        scene = _add_another(scene, relations[0], knowledge, options.skew, rng)
    return scene, [_draw_question(scene, relation, knowledge, options, rng) for relation in relations]


def _questions_by_image(n_questions: int, per_image: int) -> list[int]:
    """Return the number of questions of each image, largest first."""
    if per_image == 1:
        n_pairs = round(n_questions * SHARED_IMAGE_SHARE / 2)
        return [2] * n_pairs + [1] * (n_questions - 2 * n_pairs)
    whole, rest = divmod(n_questions, per_image)
    return [per_image] * whole + [rest] * (rest > 0)


def _with_copies(pictures: Sequence[Picture], share: float) -> list[Picture]:
    """Return the pictures, with a share of them replaced by near duplicates of others.

    Among pictures with equal numbers of questions, the last ones become copies of the first ones, in turn.
    """
    with_copies = list(pictures)
    for size in {len(picture.questions) for picture in pictures}:
        indices = [i for i, picture in enumerate(pictures) if len(picture.questions) == size]
        n_originals = max(1, len(indices) - round(share * len(indices)))
        for turn, index in enumerate(indices[n_originals:]):
            original, copy = pictures[indices[turn % n_originals]], pictures[index]
            questions = dict(zip(copy.questions, original.questions.values(), strict=True))
            with_copies[index] = Picture(copy.image_id, original.scene, questions, copy_of=original.image_id)
    return with_copies


def draw_split(options: WorldData, split: Split) -> list[Picture]:
    """Return the pictures of one split, with exactly `options.n_train` or `options.n_eval` questions.

    Image ids are random and different in the two splits; a question id is image id * 10 + a digit, as in COCO.
    """
    n_questions = options.n_train if split == "train" else options.n_eval
    sizes = _questions_by_image(n_questions, options.questions_per_image)
    n_images = len(sizes)
    knowledge = draw_knowledge(options)
    rng = generator(options.seed, "world", split)
    # Odd ids for train and even ids for val keep the splits disjoint, independent of their sizes.
    halves = rng.choice(MAX_IMAGE_ID // 2, size=n_images, replace=False)
    image_ids = 2 * halves + (1 if split == "train" else 2)
    pictures = []
    for n_here, image_id in zip(sizes, (int(value) for value in image_ids), strict=True):
        scene, questions = _draw_picture_questions(n_here, knowledge, options, rng)
        digits = rng.permutation(10)[:n_here]
        ids = [image_id * 10 + int(digit) for digit in digits]
        pictures.append(Picture(image_id, scene, dict(zip(ids, questions, strict=True))))
    return _with_copies(pictures, options.near_duplicates) if split == "train" else pictures
