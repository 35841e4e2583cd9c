from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lever_pipe.base.errors import DataError
from lever_pipe.base.records import Normalisation
from lever_pipe.metrics import vqa_accuracy as module
from lever_pipe.metrics.vqa_accuracy import cut_answer, normalise_answer, vqa_accuracy


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  Two\tdogs\n", "2 dogs"),
        ("none", "0"),
        ("Zero", "0"),
        ("ten", "10"),
        ("eleven", "eleven"),
        ("twenty-one", "twenty 1"),
        ("The cat and a dog", "cat and dog"),
        ("a", ""),
        ("an the a", ""),
        ("theatre", "theatre"),
        ("dont", "don't"),
        ("Couldntve", "couldntve"),
        ("couldnt've", "couldn't've"),
        ("oclock", "o'clock"),
        ("somebody'd", "somebodyd"),
        ("Im", "im"),  # the table's capital keys never meet the lower-cased words
        ("wheres", "where's"),
        ("yes!", "yes"),
        ("yes!no", "yes no"),
        ("t-shirt", "t shirt"),
        ("t -shirt", "t shirt"),
        ("(red)", "red"),
        ('the "end"', "end"),
        ("red/blue", "red blue"),
        ("red / blue", "red blue"),
        ("red; blue-green", "red blue green"),
        ("1,000", "1000"),
        ("1,000-2,000", "10002000"),  # a comma between digits makes every mark vanish
        ("1, 000", "1 000"),
        ("x,y", "x y"),
        ("st. john", "st john"),
        ("3.5", "3.5"),
        ("3.", "3"),
        ("3.a", "3a"),
        (".5", ".5"),
        ("u.s.a.", "usa"),
        ("12:30", "12:30"),  # colon and apostrophe are not in the list
        ("dog's", "dog's"),
        ("", ""),
    ],
)
def test_normalisation_cases(text: str, expected: str) -> None:
    assert normalise_answer(text) == expected


@pytest.mark.parametrize(("matches", "expected"), [(0, 0.0), (1, 0.3), (2, 0.6), (3, 0.9), (4, 1.0), (10, 1.0)])
def test_levels_of_ten_references(matches: int, expected: float) -> None:
    # 2 of 10: eight leave-one-outs see 2 matches (2/3), two see one (1/3): (16/3 + 2/3)/10 = .6
    answers = ["yes"] * matches + ["no"] * (10 - matches)
    assert vqa_accuracy("yes", answers) == expected


@given(st.lists(st.sampled_from(["red", "blue", "green"]), min_size=5, max_size=5))
def test_five_annotators_stored_twice_give_three_levels(annotators: list[str]) -> None:
    answers = [answer for answer in annotators for _ in range(2)]
    matches = annotators.count("red")
    assert vqa_accuracy("red", answers) == (0.0, 0.6, 1.0, 1.0, 1.0, 1.0)[matches]


def test_what_is_normalised_and_when() -> None:
    modes: tuple[Normalisation, ...] = ("when_they_disagree", "always", "punctuation_only")

    def scores(prediction: str, answers: list[str]) -> list[float]:
        return [vqa_accuracy(prediction, answers, normalise_references=mode) for mode in modes]

    unanimous, split = ["the cat"] * 10, ["the cat"] * 8 + ["dog"] * 2
    assert scores("the cat", unanimous) == [1.0, 1.0, 0.0]
    assert scores("cat", unanimous) == [0.0, 1.0, 0.0]
    assert scores("The cat.", unanimous) == [0.0, 1.0, 0.0]
    assert scores("The cat.", split) == [1.0, 1.0, 0.0]
    # the first revision keeps the space that replaces the mark at the end
    assert scores("two dogs", ["2 dogs!"] * 5 + ["dogs"] * 5) == [1.0, 1.0, 0.0]
    assert scores("two dogs", ["2 dogs"] * 2 + ["two dogs"] * 8) == [1.0, 1.0, 0.6]
    assert scores(" yes\n", ["yes"] * 10) == [1.0, 1.0, 1.0]
    # unanimous up to outer spaces counts as unanimous, except in the first revision
    assert scores("Yes", ["yes"] * 9 + ["yes "]) == [0.0, 1.0, 1.0]
    assert vqa_accuracy("The cat.", unanimous) == 0.0
    for prediction in ("Black", "Black.", "the black"):  # lmms-eval 794
        assert scores(prediction, ["black"] * 10) == [0.0, 1.0, 1.0]


def test_no_reference_is_an_error() -> None:
    with pytest.raises(DataError):
        vqa_accuracy("yes", [])


NUMBER_WORDS = "none zero one two three four five six seven eight nine ten"
SMALL_NUMBERS = NUMBER_WORDS.split()
ORACLE_CONTRACTIONS = {
    "dont": "don't",
    "theyve": "they've",
    "let's": "let's",
    "thered": "there'd",
}


def oracle_normalise(text: str) -> str:
    """Character by character, without regular expressions or the module's tables."""
    text = text.replace("\n", " ").replace("\t", " ").strip()
    digit_comma_digit = any(
        text[i] == "," and text[i - 1].isdigit() and text[i + 1].isdigit() for i in range(1, len(text) - 1)
    )
    vanishing = set()
    for mark in set(';/[]"{}()=+\\_-><@`,?!'):
        next_to_space = [
            i
            for i, character in enumerate(text)
            if character == mark and (text[i + 1 : i + 2] == " " or text[max(i - 1, 0) : i] == " ")
        ]
        if next_to_space or digit_comma_digit:
            vanishing.add(mark)
    spaced = "".join("" if c in vanishing else " " if c in ';/[]"{}()=+\\_-><@`,?!' else c for c in text)
    kept, stops = [], 0
    for i, character in enumerate(spaced):
        if character == "." and stops < 32 and not spaced[i + 1 : i + 2].isdigit():
            stops += 1
        else:
            kept.append(character)
    words = []
    for word in "".join(kept).lower().split():
        if word in SMALL_NUMBERS:
            word = str(max(0, SMALL_NUMBERS.index(word) - 1))
        if word not in ("a", "an", "the"):
            words.append(ORACLE_CONTRACTIONS.get(word, word))
    return " ".join(words)


def oracle_accuracy(prediction: str, answers: list[str]) -> float:
    """Leave one out, count, average."""
    answers = [answer.replace("\n", " ").replace("\t", " ").strip() for answer in answers]
    prediction = prediction.replace("\n", " ").replace("\t", " ").strip()
    if any(answer != answers[0] for answer in answers):
        prediction = oracle_normalise(prediction)
        answers = [oracle_normalise(answer) for answer in answers]
    total = 0.0
    for left_out in range(len(answers)):
        others = answers[:left_out] + answers[left_out + 1 :]
        total += min(1.0, sum(other == prediction for other in others) / 3)
    return total / len(answers)


pieces = st.sampled_from(
    ["a", "the", "two", "none", "ten", "dont", "theyve", "let's", "red", "Red", "1", "20", "000", *" \t\n.,;-/!?'\"()"]
)
texts = st.lists(pieces, max_size=12).map("".join)


@settings(max_examples=300)
@given(texts)
def test_normalisation_agrees_with_the_oracle(text: str) -> None:
    assert normalise_answer(text) == oracle_normalise(text)


@settings(max_examples=200)
@given(st.sampled_from(["yes", "the yes", "Yes!", "1", "one"]), st.data())
def test_accuracy_agrees_with_the_oracle(prediction: str, data: st.DataObject) -> None:
    words = st.sampled_from(["yes", "yes.", " yes", "one", "1", "no"])
    answers = data.draw(st.lists(words, min_size=2, max_size=10))
    # abs: the oracle sums thirds in floating point
    expected = pytest.approx(oracle_accuracy(prediction, answers), abs=1e-12)
    assert vqa_accuracy(prediction, answers) == expected
    assert vqa_accuracy(prediction, answers[::-1]) == vqa_accuracy(prediction, answers)


def test_contractions_only_add_apostrophes() -> None:
    table = module._CONTRACTIONS
    assert len(table) == 120
    assert all(key.replace("'", "") == value.replace("'", "") for key, value in table.items())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" motocross", "motocross"),
        ("motocross Question: what", "motocross"),
        ("red\nAnswer: blue", "red"),
        ("red Short answer: blue", "red"),
        ("red, blue Question", "red"),
        ("1,000 dollars", "1,000 dollars"),
        ("red Question, blue", "red"),
        ("red Answer x Question y", "red"),
        ("the question", "the question"),
        ("Question:", ""),
        ("Shortbread", ""),
        ("", ""),
    ],
)
def test_cut_answer(text: str, expected: str) -> None:
    assert cut_answer(text) == expected
