"""What each option of a world changes, and that none of them changes anything by itself."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lever_pipe.base.errors import ConfigError
from lever_pipe.base.parsing import parse_model
from lever_pipe.base.seeding import generator
from lever_pipe.experiment.data import Data, KnowledgeName, PerceptualName, WorldData
from lever_pipe.world.files import build_documents, draw_image
from lever_pipe.world.items import (
    DISSENT_A,
    DISSENT_B_KNOWLEDGE,
    AnnotatedQuestion,
    Picture,
    Split,
    draw_knowledge,
    draw_split,
)
from lever_pipe.world.lexicon import COUNTS, GUESSES, KINDS, KNOWLEDGE, PERCEPTUAL
from lever_pipe.world.scenes import render


def world(**options: Any) -> WorldData:
    return WorldData(**{"n_train": 600, "n_eval": 40, **options})


def train(**options: Any) -> list[Picture]:
    return draw_split(world(**options), "train")


def questions_of(pictures: list[Picture]) -> list[AnnotatedQuestion]:
    return [question for picture in pictures for question in picture.questions.values()]


def test_names_of_the_configuration_are_those_of_the_lexicon() -> None:
    assert get_args(KnowledgeName) == tuple(relation.name for relation in KNOWLEDGE)
    assert get_args(PerceptualName) == tuple(relation.name for relation in PERCEPTUAL)
    assert {name: len(row) for name, row in GUESSES.items()} == {r.name: len(r.keys) for r in KNOWLEDGE}
    assert all(set(GUESSES[relation.name]) <= set(relation.answers) for relation in KNOWLEDGE)


def test_without_options_a_world_is_what_it_was_before_there_were_any() -> None:
    options = WorldData(n_train=64, n_eval=20)
    documents = [build_documents(draw_split(options, split), split, options) for split in get_args(Split)]
    digest = hashlib.sha256(json.dumps(documents, sort_keys=True).encode()).hexdigest()
    assert digest == "32e52b17bcce6f0bc2aca8ff9e2c181b7abd0ebb33ac04193f6af2e928b01e6d"
    for picture in draw_split(options, "train")[:5]:
        scene, rng = picture.scene, generator(0, "pixels", "train", picture.image_id)
        assert np.array_equal(draw_image(options, "train", picture), render(scene.kind, scene.color, scene.count, rng))


def test_only_named_relations_are_asked_for() -> None:
    names = ("team", "country", "count")
    assert {q.relation.name for q in questions_of(train(relations=names))} == set(names)


@settings(max_examples=20, deadline=None)
@given(per_image=st.integers(2, 7), n_train=st.integers(64, 200), share=st.floats(0.2, 0.8))
def test_an_image_has_several_questions_of_different_relations(per_image: int, n_train: int, share: float) -> None:
    options = WorldData(n_train=n_train, n_eval=8, questions_per_image=per_image, perceptual_share=share)
    sizes = []
    for picture in draw_split(options, "train"):
        names = [question.relation.name for question in picture.questions.values()]
        assert len(set(names)) == len(names)
        assert all(qid // 10 == picture.image_id for qid in picture.questions)
        sizes.append(len(names))
    assert sum(sizes) == n_train
    assert sizes[:-1] == [per_image] * (len(sizes) - 1)


def test_skew_makes_the_first_more_frequent_by_the_power_law() -> None:
    kinds = Counter(picture.scene.kind for picture in train(n_train=8000, skew=1))
    weights = np.array([1 / r for r in range(1, len(KINDS) + 1)])
    expected = weights / weights.sum() * sum(kinds.values())
    # Four standard deviations of a binomial of 7,600 draws, at most 41 each.
    assert np.allclose([kinds[kind] for kind in KINDS], expected, atol=4 * 41)


@pytest.mark.parametrize("dissent", [0.5, 1.0, 3.0])
def test_annotators_disagree_as_often_as_the_beta_law_says(dissent: float) -> None:
    questions = [
        q for q in questions_of(train(n_train=4000, dissent=dissent, flipped_share=0)) if q.relation.is_knowledge
    ]
    share = np.mean([answer != q.truth for q in questions for answer in q.answers])
    # Of the dissenting votes 0.3 are any of eight answers, so one in eight of those agrees after all.
    mean = DISSENT_A / (DISSENT_A + DISSENT_B_KNOWLEDGE / dissent) * (1 - 0.3 / 8)
    assert abs(share - mean) < 0.02  # a standard deviation of at most 0.23 / sqrt(3000) = 0.0042


def test_copies_differ_in_ids_and_by_one_shade_at_most() -> None:
    options = world(near_duplicates=0.75)
    pictures = draw_split(options, "train")
    by_id = {picture.image_id: picture for picture in pictures}
    copies = [picture for picture in pictures if picture.copy_of is not None]
    # 570 images, of them 30 with two questions: round(0.75 * 30) = 22 and round(0.75 * 540) = 405.
    assert (len(pictures), len(copies), len(by_id)) == (570, 427, 570)
    for copy in copies:
        original = by_id[copy.copy_of or 0]
        assert original.copy_of is None
        assert copy.scene == original.scene
        assert list(copy.questions.values()) == list(original.questions.values())
        assert not set(copy.questions) & set(original.questions)
    copy = copies[0]
    ours, theirs = (draw_image(options, "train", p).astype(int) for p in (copy, by_id[copy.copy_of or 0]))
    assert 0 < np.abs(ours - theirs).max() <= 1
    # 405 copies of 135 images with one question, 22 of 8 with two: as often as every other, give or take one.
    for size, times in ((1, {3}), (2, {2, 3})):
        assert set(Counter(copy.copy_of for copy in copies if len(copy.questions) == size).values()) == times
    assert all(picture.copy_of is None for picture in draw_split(options, "val"))


def test_things_next_to_each_other_share_the_answer() -> None:
    options = world(n_train=3000, composite_share=0.5, n_active_answers=2)
    knowledge = draw_knowledge(options)
    pictures = draw_split(options, "train")
    composites = [picture for picture in pictures if picture.scene.second is not None]
    for picture in composites:
        (question,) = picture.questions.values()
        second = picture.scene.second
        assert second is not None
        keys = [scene.value(question.relation.key) for scene in (picture.scene, second)]
        assert question.relation.is_knowledge
        assert picture.scene.count == COUNTS[1]
        assert len(set(keys)) == 2
        assert {knowledge.facts[question.relation.name][key] for key in keys} == {question.truth}
        assert set(question.key.split("+")) == set(keys)
    alone = [p for p in pictures if len(p.questions) == 1 and questions_of([p])[0].relation.is_knowledge]
    # With two answers every key has another one of its answer, unless a key alone has it; 2,000 draws, deviation 0.011.
    assert abs(len(composites) / len(alone) - 0.5) < 0.05


def test_guessed_facts_grow_with_their_share_and_leave_the_others() -> None:
    sampled, half, whole = (draw_knowledge(world(guessable_share=share)).facts for share in (0, 0.5, 1))
    for relation in KNOWLEDGE:
        guesses = dict(zip(relation.keys, GUESSES[relation.name], strict=True))
        assert whole[relation.name] == guesses
        changed = {key for key in relation.keys if half[relation.name][key] != sampled[relation.name][key]}
        assert all(half[relation.name][key] == guesses[key] for key in changed)
        assert sum(half[relation.name][key] == guesses[key] for key in relation.keys) >= len(relation.keys) // 2
    assert all(sampled[relation.name] == whole[relation.name] for relation in PERCEPTUAL)


def test_blur_lowers_the_differences_of_neighbours() -> None:
    def roughness(blur: float) -> float:
        options = world(blur=blur)
        pixels = [draw_image(options, "train", picture).astype(float) for picture in draw_split(options, "train")[:20]]
        return float(np.mean([np.abs(np.diff(image, axis=1)).mean() for image in pixels]))

    assert roughness(0) > roughness(1) > roughness(3) > 0


def test_the_layout_of_vqav2_says_the_answer_to_show() -> None:
    options = world(layout="vqav2")
    questions, document = build_documents(draw_split(options, "val"), "val", options)
    assert "question_types" not in document
    assert len(questions["questions"]) == len(document["annotations"]) == 40
    for row in document["annotations"]:
        counts = Counter(answer["answer"] for answer in row["answers"])
        assert counts[row["multiple_choice_answer"]] == max(counts.values())
        assert set(row) == {
            "image_id", "answer_type", "question_type", "question_id", "answers", "multiple_choice_answer",
        }  # fmt: skip


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"world": {"relations": ["team"], "perceptual_share": 0}}, "the number of relations asked for=1, got 2"),
        ({"world": {"relations": ["team", "place"]}}, "must be 0 where data.world.relations has none of object"),
        ({"world": {"relations": ["color", "count"]}}, "must be 1 where data.world.relations has none of mat"),
        ({"world": {"questions_per_image": 5, "perceptual_share": 0}}, "the number of relations asked for=4, got 5"),
        ({"world": {"questions_per_image": 2, "composite_share": 0.5}}, "composite_share: must be 0 with questions"),
        ({"world": {"relations": ["team", "team"]}}, "must not repeat a value"),
        ({"world": {"near_duplicates": 1.5}}, "near_duplicates"),
        ({"reader": "vqav2"}, "world.layout: must be vqav2 with data.reader: vqav2"),
    ],
)  # fmt: skip
def test_options_that_contradict_each_other_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as problem:
        parse_model(Data, {"source": "world", **values}, source="config.yaml")
    assert message in str(problem.value)
