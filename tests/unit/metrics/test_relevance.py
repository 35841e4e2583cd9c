from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.metrics.relevance import edit_similarity, relevance, token_f1

answers = st.text(alphabet="ab c", max_size=8)


def test_token_f1_by_hand() -> None:
    # Common word: bike. Precision 1/2, recall 1/3; F1 = 2/5.
    assert token_f1("dirt bike", "red race bike") == pytest.approx(0.4, abs=1e-12)
    # Bags, not sets: one of two "dog" is matched; 2 * 1 / (2 + 1).
    assert token_f1("dog dog", "dog") == pytest.approx(2 / 3, abs=1e-12)
    assert token_f1("The Two dogs!", "2 dogs") == 1.0
    assert token_f1("", "a") == 1.0  # the article is removed: both are empty
    assert token_f1("", "dog") == 0.0


def test_edit_similarity_by_hand() -> None:
    # "abcd" and "bcde" share the block "bcd": 2 * 3 / 8.
    assert edit_similarity("abcd", "bcde") == 0.75
    assert edit_similarity("Dogs.", "dogs") == 1.0
    assert edit_similarity("xyz", "bcd") == 0.0


@given(answers, answers)
def test_bounds_and_identity(first: str, second: str) -> None:
    for measure in (token_f1, edit_similarity):
        assert 0.0 <= measure(first, second) <= 1.0
        assert measure(first, first) == 1.0
    assert token_f1(first, second) == token_f1(second, first)


def test_relevance_takes_each_maximum_by_itself() -> None:
    # "motorbike" has no word in common with either and the longest block with "motorbikes":
    # 2 * 9 / 19. "red bus" shares "red".
    found = relevance("red motorbike", ["red bus", "motorbikes"])
    assert found.token_f1 == pytest.approx(0.5, abs=1e-12)
    assert found.edit_similarity == pytest.approx(18 / 23, abs=1e-12)
    assert found.score == found.edit_similarity
    assert relevance("dog", ["dog", "cat"]).score == 1.0
    assert relevance("dog", []).score == 0.0


@given(answers, st.lists(answers, min_size=1, max_size=4))
def test_relevance_agrees_with_the_slow_maximum(prediction: str, references: list[str]) -> None:
    found = relevance(prediction, references)
    assert found.token_f1 == max(token_f1(prediction, text) for text in references)
    assert found.edit_similarity == max(edit_similarity(prediction, text) for text in references)
    assert found.score == max(found.token_f1, found.edit_similarity)
