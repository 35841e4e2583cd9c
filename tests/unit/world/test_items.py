"""Knowledge, questions and annotators of one world."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from lever_pipe.experiment.data import WorldData
from lever_pipe.world.items import AnnotatedQuestion, Picture, annotate, draw_knowledge, draw_split
from lever_pipe.world.lexicon import COLORS, COUNTS, KINDS, KNOWLEDGE

OPTIONS = WorldData()


@pytest.fixture(scope="module")
def train() -> list[Picture]:
    return draw_split(OPTIONS, "train")


@pytest.fixture(scope="module")
def questions(train: list[Picture]) -> list[AnnotatedQuestion]:
    return [question for picture in train for question in picture.questions.values()]


def _majority(question: AnnotatedQuestion) -> str:
    return Counter(question.answers).most_common(1)[0][0]


@pytest.mark.parametrize("n_active", [1, 4, 8])
def test_a_mapping_uses_the_active_answers_and_no_other(n_active: int) -> None:
    knowledge = draw_knowledge(WorldData(n_active_answers=n_active))
    for relation in KNOWLEDGE:
        facts = knowledge.facts[relation.name]
        assert set(facts) == set(relation.keys)
        # Six colours cannot use eight answers.
        assert len(set(facts.values())) == min(n_active, len(relation.keys))


def test_sizes_types_and_shared_images(train: list[Picture], questions: list[AnnotatedQuestion]) -> None:
    assert len(questions) == 2000
    # 10 % of 2000 questions sit in pairs: 100 pairs, so 1900 images.
    assert len(train) == 1900
    shared = [picture for picture in train if len(picture.questions) == 2]
    assert len(shared) == 100
    for picture in shared:
        first, second = picture.questions.values()
        assert first.relation != second.relation


def test_keys_follow_the_scene_and_truth_follows_the_knowledge(train: list[Picture]) -> None:
    knowledge = draw_knowledge(OPTIONS)
    for picture in train:
        for question in picture.questions.values():
            assert question.key == picture.scene.value(question.relation.key)
            assert question.truth == knowledge.facts[question.relation.name][question.key]
            assert question.text in question.relation.questions
            assert len(question.answers) == 10
            assert set(question.answers) <= set(question.relation.answers)


def test_majorities_are_mostly_true_and_scores_are_graded(questions: list[AnnotatedQuestion]) -> None:
    agreement = np.mean([_majority(question) == question.truth for question in questions])
    # 5 % of three quarters of the questions are flipped and some others are split votes.
    assert 0.90 <= agreement <= 0.97
    votes = {question.answers.count(question.truth) for question in questions}
    # min(1, votes / 3) takes all of 0, 1/3, 2/3 and 1.
    assert {0, 1, 2, 3} <= votes


def test_attributes_are_balanced(train: list[Picture], questions: list[AnnotatedQuestion]) -> None:
    def spread(values: list[str]) -> float:
        counts = Counter(values)
        return max(counts.values()) / min(counts.values())

    # 1900 / 8 = 237 a kind, standard deviation 14: a ratio of 1.5 is five deviations away.
    assert {p.scene.kind for p in train} == set(KINDS)
    assert {p.scene.color for p in train} == set(COLORS)
    assert spread([p.scene.kind for p in train]) < 1.5
    assert spread([p.scene.color for p in train]) < 1.5
    single = np.mean([p.scene.count == COUNTS[0] for p in train])
    # 0.7, less for questions about the count itself: 0.25 / 3 of the questions at 1/3.
    assert abs(single - (0.7 - 0.25 / 3 * (0.7 - 1 / 3))) < 0.04
    perceptual = np.mean([not q.relation.is_knowledge for q in questions])
    assert abs(perceptual - 0.25) < 0.04  # four standard deviations of 0.0097
    per_relation = [q.relation.name for q in questions if q.relation.is_knowledge]
    assert spread(per_relation) < 1.4


def test_splits_share_no_image(train: list[Picture]) -> None:
    val = draw_split(OPTIONS, "val")
    assert not {p.image_id for p in train} & {p.image_id for p in val}


def test_another_seed_gives_other_questions_about_the_same_knowledge(
    train: list[Picture],
) -> None:
    other = draw_split(WorldData(seed=1), "train")
    assert [p.image_id for p in other] != [p.image_id for p in train]
    facts = {(q.type, q.truth) for p in train for q in p.questions.values()}
    assert {(q.type, q.truth) for p in other for q in p.questions.values()} <= facts


def test_a_flipped_question_has_its_majority_at_the_confusion() -> None:
    relation = KNOWLEDGE[0]
    rng = np.random.default_rng(0)
    votes = Counter[str]()
    for _ in range(200):
        votes.update(annotate(relation, "wood", "metal", WorldData(flipped_share=1), rng))
    # The main answer gets 1 - 1.2 / 6.2 = 81 % and the second 0.7 of the rest, 14 %.
    assert abs(votes["metal"] / 2000 - 0.81) < 0.06
    assert abs(votes["wood"] / 2000 - 0.14) < 0.06
