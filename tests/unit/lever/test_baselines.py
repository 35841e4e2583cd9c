from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from builders import embedding_arrays, example
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.lever.baselines import (
    OWN_SHARE,
    best_by_annotations,
    bm25_over,
    holds_exact_demonstration,
    rank_by_annotations,
    rank_by_dpp,
    rank_by_mmr,
    relevance_and_likeness,
    words_in,
)


def test_the_oracle_ranks_by_answer_then_type_then_similarity() -> None:
    query = example(0, answers=("cat",) * 6 + ("dog",) * 2 + ("cow",) * 2, question_type="animal")
    candidates = [
        example(1, answer="bird", question_type="animal"),  # wrong, same type
        example(2, answer="cat", question_type="colour"),  # right, other type
        example(3, answer="dog", question_type="animal"),  # partly right: .6
        example(4, answer="cat", question_type="animal"),  # right, same type, less similar
        example(5, answer="cat", question_type="animal"),  # right, same type, more similar
        example(6, answer="bird", question_type="colour"),  # wrong, other type, most similar
    ]
    similar = {"image": np.array([0, 0.9, 0.9, 0.1, 0.3, 1.0], dtype=np.float32), "question": np.zeros(6, np.float32)}
    assert rank_by_annotations(query, candidates, similar).tolist() == [4, 3, 1, 2, 0, 5]


def test_a_pool_holds_an_exact_demonstration_only_with_type_and_answer() -> None:
    query = example(0, answers=("cat",) * 6 + ("dog",) * 2 + ("cow",) + ("ox",), question_type="animal")
    right, other_type = example(1, answer="cat", question_type="animal"), example(2, answer="cat", question_type="x")
    six_tenths, three_tenths = (example(3, answer=a, question_type="animal") for a in ("dog", "cow"))
    assert holds_exact_demonstration(query, [other_type, right])
    assert holds_exact_demonstration(query, [six_tenths])  # .6
    assert not holds_exact_demonstration(query, [other_type, three_tenths])  # .3
    assert not holds_exact_demonstration(query, [])


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("xy")), min_size=1, max_size=8), st.integers(0, 9))
def test_the_oracle_ranks_the_best_first(kinds: list[tuple[str, str]], seed: int) -> None:
    query = example(0, answers=("a",) * 5 + ("b",) * 3 + ("c",) * 2, question_type="x")
    candidates = [example(i + 1, answer=answer, question_type=kind) for i, (answer, kind) in enumerate(kinds)]
    rng = np.random.default_rng(seed)
    similar = {part: rng.uniform(-1, 1, len(kinds)).astype(np.float32) for part in ("image", "question")}
    best = best_by_annotations(query, candidates)
    assert best.any() == any(answer in "abc" for answer, _ in kinds)
    ranked = rank_by_annotations(query, candidates, similar)[: int(best.sum())]
    assert set(ranked.tolist()) == set(np.flatnonzero(best).tolist())


def sampled(seed: int, size: int = 7) -> tuple[np.ndarray, np.ndarray]:
    """Return relevance and likeness of unit vectors."""
    rows = embedding_arrays(size + 1, seed=seed)
    candidates = {part: rows[part][1:] for part in rows}
    return relevance_and_likeness({part: candidates[part] @ rows[part][0] for part in rows}, candidates)


def test_mmr_by_hand() -> None:
    relevance, alike = np.array([0.9, 0.8, 0.1]), np.array([[1, 0.95, 0], [0.95, 1, 0], [0, 0, 1.0]])
    # the copy of the first scores .5 .8 - .5 .95 = -.075, the other .05
    assert rank_by_mmr(relevance, alike, 3) == [0, 2, 1]
    assert rank_by_mmr(relevance, alike, 3, weight=0.9) == [0, 1, 2]  # .625 against .09
    # after two unlike ones, the copy of one scores .25 - .5 .9 = -.2 and the one half like both 0: the mean .45
    # of the first would be the smaller one
    alike = np.array([[1, 0, 0.9, 0.5], [0, 1, 0, 0.5], [0.9, 0, 1, 0], [0.5, 0.5, 0, 1]])
    assert rank_by_mmr(np.array([0.9, 0.8, 0.5, 0.5]), alike, 4) == [0, 1, 3, 2]


def test_dpp_by_hand() -> None:
    relevance, alike = np.array([0.1, 0.0, 0.0]), np.array([[1, 0.6, 0], [0.6, 1, 0.6], [0, 0.6, 1.0]])
    # after the first, the second has 1 - .36 of its volume, the third all of it
    assert rank_by_dpp(relevance, alike, 3, scale=1.0) == [0, 2, 1]
    # e^(.5 / .2) outweighs that
    assert rank_by_dpp(np.array([1.0, 0.5, 0.0]), alike, 3) == [0, 1, 2]


def volume(relevance: np.ndarray, alike: np.ndarray, chosen: tuple[int, ...], scale: float) -> float:
    quality = np.exp(relevance / (2 * scale))
    kernel = quality[:, None] * (alike + OWN_SHARE * np.eye(len(alike))) * quality
    return float(np.linalg.slogdet(kernel[np.ix_(chosen, chosen)])[1])


@given(st.integers(0, 99), st.sampled_from([0.1, 0.5, 5.0]))
def test_each_pick_of_a_dpp_is_the_one_that_adds_most_volume(seed: int, scale: float) -> None:
    relevance, alike = sampled(seed)
    chosen = tuple(rank_by_dpp(relevance, alike, 4, scale))
    for step in range(4):
        others = [i for i in range(7) if i not in chosen[:step]]
        gains = {i: volume(relevance, alike, (*chosen[:step], i), scale) for i in others}
        assert gains[chosen[step]] == pytest.approx(max(gains.values()), abs=1e-6)
    best = max(volume(relevance, alike, of, scale) for of in combinations(range(7), 4))
    assert volume(relevance, alike, chosen, scale) <= best + 1e-9


@given(
    st.lists(st.lists(st.sampled_from(["red", "dog", "hat", "sun"]), min_size=1, max_size=6), min_size=2, max_size=6)
)
def test_bm25_is_its_formula(questions: list[list[str]]) -> None:
    query = ["dog", "sun", "unseen"]
    mean = sum(map(len, questions)) / len(questions)

    def formula(words: list[str]) -> float:
        total = 0.0
        for word in query:
            holding = sum(word in of for of in questions)
            idf = math.log(1 + (len(questions) - holding + 0.5) / (holding + 0.5))
            often = words.count(word)
            total += idf * often / (often + 1.5 * (1 - 0.75 + 0.75 * len(words) / mean))
        return total

    found = bm25_over([" ".join(of) for of in questions])(" ".join(query))
    np.testing.assert_allclose(found, [formula(of) for of in questions], rtol=1e-5, atol=1e-7)


def test_words_of_a_text() -> None:
    assert words_in("Is it a 7, or X-ray?") == ["is", "it", "a", "7", "or", "x", "ray"]
    assert words_in("iPhone是什么") == ["iphone", "是", "什", "么"]
    assert words_in("?!…") == []


@pytest.mark.parametrize("questions", [["?"], ["", "", "", ""], ["…", "what is it"], ["what is it", ""]])
@pytest.mark.parametrize("query", ["?", "", "诺贝尔奖得主", "what"])  # empty corpora: bm25s 60 and 67
def test_bm25_scores_texts_without_words(questions: list[str], query: str) -> None:
    scores = bm25_over(questions)(query)
    assert scores.shape == (len(questions),)
    assert ((scores > 0) == np.array([query == "what" and "what" in question for question in questions])).all()


@pytest.mark.parametrize(
    ("query", "alike", "other"),
    [
        ("is it a 7?", "7", "what is that"),  # one digit
        ("vitamin C", "C", "vitamin tablet"),  # one letter
        ("这是什么颜色？", "颜色", "几只狗"),  # Chinese
        ("これは何色ですか", "何色", "犬"),  # Japanese
        ("สีอะไร", "สี", "หมา"),  # Thai
        ("हिन्दी में", "में", "ह न द म"),  # Hindi: vowel signs are parts of words
        ("여기 한국어 질문", "질문", "한"),  # Korean has spaces
    ],
)
def test_bm25_counts_every_word_of_every_script(query: str, alike: str, other: str) -> None:
    scores = bm25_over([other, alike, "unrelated"])(query)
    assert scores[1] > 0
    assert scores[2] == 0
    if not set(words_in(query)) & set(words_in(other)):
        assert scores[0] == 0


def test_the_best_by_annotations_are_where_the_oracle_begins() -> None:
    query = example(0, answers=("cat",) * 6 + ("dog",) * 2 + ("cow",) * 2, question_type="animal")
    candidates = [
        example(1, answer="bird", question_type="animal"),  # wrong, same type
        example(2, answer="cat", question_type="colour"),  # right, other type
        example(3, answer="dog", question_type="animal"),  # partly right: .6
        example(4, answer="cat", question_type="animal"),  # right, same type
        example(5, answer="cat", question_type="animal"),  # right, same type
    ]

    def best(*positions: int) -> list[bool]:
        return best_by_annotations(query, [candidates[position] for position in positions]).tolist()

    assert best(0, 1, 2, 3, 4) == [False, False, False, True, True]
    assert best(0, 1, 2) == [False, True, False]  # the answer counts more than the type
    assert best(2, 0) == [True, False]  # the best there is, though partly right
    assert best(0) == [False]  # no answer earns: nothing is best
    assert best(1, 1) == [True, True]
