from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.base.errors import RecordError
from lever_pipe.report.page.glossary import Glossary, read_glossary
from lever_pipe.report.page.numbers import numbers_in

HEAD = (
    'language: xx\njoints: {and: " & ", comma: " + ", series: " | ", sentence: " "}\npassing: ["KL_BETA", "`[^`]+`"]\n'
)
SMALL = """
terms:
  "Mean": "MEAN"
  "Most similar image and question": "BOTH"
  "A fixed sentence.": "FIXED."
patterns:
  "Accuracy at {n} samples, epoch {n2}": "{n2} epoch: {n} samples"
  "Published {l}: {t} ({r})": "PUB {l} = {t} <{r}>"
  "Ours: {s}.": "OURS {s}."
  "{n} epochs": "{n} EPOCHS"
  "twice {n}, {n}": "{n} {n}"
  "the {t}": "THE {t}"
  "the very {t}": "VERY {t}"
  "read by {m}.": "BY {m}."
  "written by {r}.": "RAW {r}."
"""


Read = Callable[..., Glossary]


@pytest.fixture
def glossary(tmp_path: Path) -> Callable[..., Glossary]:
    def read(*bodies: str) -> Glossary:
        for index, body in enumerate(bodies or (SMALL,)):
            (tmp_path / f"{index}.yaml").write_text(body if index else HEAD + body, encoding="utf-8")
        return read_glossary(sorted(tmp_path.glob("*.yaml")))

    return read


@pytest.mark.parametrize(
    ("english", "translated"),
    [
        ("Mean", "MEAN"),
        ("12.5 ± 0.3", "12.5 ± 0.3"),  # no letter
        ("KL_BETA", "KL_BETA"),
        ("`any name`", "`any name`"),
        ("Accuracy at 200 samples, epoch 3", "3 epoch: 200 samples"),
        ("Published 0.12 and 0.15: Mean (a file.md)", "PUB 0.12 & 0.15 = MEAN <a file.md>"),
        ("Published 0.1, 0.2 and 0.3: Mean (f)", "PUB 0.1 + 0.2 & 0.3 = MEAN <f>"),
        ("Published Mean, Most similar image and question: Mean (f)", "PUB MEAN + BOTH = MEAN <f>"),
        ("Published Mean and Most similar image and question: Mean (f)", "PUB MEAN & BOTH = MEAN <f>"),
        ("Ours: 1 epochs; 2 epochs.", "OURS 1 EPOCHS | 2 EPOCHS."),
        ("A fixed sentence. Ours: 3 epochs.", "FIXED. OURS 3 EPOCHS."),
        ("twice 4, 4", "4 4"),
        ("the very Mean", "VERY MEAN"),  # the more specific pattern
        ("the the Mean", "THE THE MEAN"),
        ("read by Mean.", "BY MEAN."),
        ("read by X.", "BY X."),  # a name that has no entry
        ("read by X; Mean.", "BY X | MEAN."),
        ("written by Mean.", "RAW Mean."),
        ("1 epochs; 2 epochs", "1 EPOCHS | 2 EPOCHS"),  # a series needs no pattern
    ],
)
def test_translation(glossary: Read, english: str, translated: str) -> None:
    assert glossary().translate(english) == (translated, [])


@pytest.mark.parametrize(
    ("english", "left", "missing"),
    [
        ("Median", "Median", ["Median"]),
        ("twice 4, 5", "twice 4, 5", ["twice 4, 5"]),
        ("the Median", "the Median", ["the Median"]),
        (
            "A fixed sentence. Unknown words. Ours: 3 epochs.",
            "FIXED. Unknown words. OURS 3 EPOCHS.",
            ["Unknown words."],
        ),
        # a raw slot must not swallow a second sentence
        ("written by X. Unknown.", "RAW X. Unknown.", ["Unknown."]),
    ],
)
def test_what_is_missing_stays_english_and_is_named(
    glossary: Read, english: str, left: str, missing: list[str]
) -> None:
    assert glossary().translate(english) == (left, missing)


def test_slots_hold_whole_brackets(glossary: Read) -> None:
    found = glossary('terms: {"a": "A", "b": "B"}\npatterns: {"{t} for {l}": "{l} = {t}", "{t} ({m})": "{t} <{m}>"}\n')
    assert found.translate("a for b and a") == ("B & A = A", [])
    assert found.translate("a (x for y)") == ("A <x for y>", [])
    assert found.translate("a (a for b; b for a)") == ("A <B = A | A = B>", [])
    assert found.translate("a (x (1; 2); b)") == ("A <x (1; 2) | B>", [])


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("range of KL", "KL 的范围"),  # a blank between Latin and Chinese
        ("range of reward", "奖励的范围"),  # none within Chinese, though the pattern has one
        ("range of 0.5", "0.5 的范围"),
        ("KL and reward", "KL 和奖励"),
        ("reward and reward", "奖励和奖励"),
        ("of (reward)", "（奖励）"),
    ],
)
def test_chinese_and_latin_letters_are_set_apart(glossary: Read, english: str, chinese: str) -> None:
    body = 'terms: {"reward": "奖励", "KL": "KL"}\npatterns: {"range of {t}": "{t} 的范围", "of ({t})": "（{t}）"}\n'
    listed = 'patterns: {"all {l}": "{l}"}\n'
    found = glossary(body, listed)
    text = f"all {english}" if " and " in english else english
    assert read_with(found, "和").translate(text) == (chinese, [])


def read_with(found: Glossary, joint: str) -> Glossary:
    return replace(found, joints={**found.joints, "and": joint}, _known={})


def test_a_text_of_several_sentences_may_be_one_entry(glossary: Read) -> None:
    found = glossary('terms: {"One vs. two. And more.": "ALL", "End.": "END."}\npatterns: {}\n')
    assert found.translate("One vs. two. And more. End.") == ("ALL END.", [])


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('terms: {"a 1": "b 2"}\npatterns: {}', r"'a 1': numbers \['1'\] became \['2'\]"),
        ('terms: {"a 0.5": "b -0.5"}\npatterns: {}', "numbers"),
        ('terms: {}\npatterns: {"a {n}": "b {t}"}', "slots"),
        ('terms: {}\npatterns: {"a {n}": "b"}', "slots"),
        ('terms: {}\npatterns: {"a {n}": "{n} {n}"}', "slots"),
        ('terms: {}\npatterns: {"a": "b"}', "a pattern has slots"),
        ('terms: {}\npatterns: {"{t}": "{t}"}', "a pattern has slots"),
        ('terms: {"a {n}": "b {n}"}\npatterns: {}', "a pattern has slots"),
        ('terms: {"a": 1}\npatterns: {}', "quoted text"),
        ('terms: {"a": "b", "a": "c"}\npatterns: {}', "stand twice: a"),
        ("terms: {}\nother: {}", "expected keys out of"),
        ("terms: [", "expected YAML"),
    ],
)
def test_an_entry_that_could_change_a_number_is_refused(glossary: Read, body: str, fault: str) -> None:
    with pytest.raises(RecordError, match=fault):
        glossary(f"{body}\n")


def test_parts_stand_in_several_files(glossary: Read) -> None:
    found = glossary(SMALL, 'terms: {"More": "MORE"}\n')
    assert found.translate("More. A fixed sentence.")[0].endswith("FIXED.")
    assert found.translate("the More") == ("THE MORE", [])
    with pytest.raises(RecordError, match=r"1.yaml: expected texts of its own; found \['Mean'\] in two files"):
        glossary(SMALL, 'terms: {"Mean": "AGAIN"}\n')


def test_a_missing_joint_or_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text('language: xx\njoints: {and: "", comma: "", sentence: ""}\n')
    with pytest.raises(RecordError, match=r"x.yaml: expected series; found none"):
        read_glossary([path])
    path.write_text('joints: {and: "", comma: "", sentence: "", series: ""}\n')
    with pytest.raises(RecordError, match=r"x.yaml: expected language; found none"):
        read_glossary([path])
    with pytest.raises(RecordError, match=r"none.yaml: expected UTF-8 text"):
        read_glossary([tmp_path / "none.yaml"])


words = st.sampled_from(["Mean", "KL_BETA", "12.5", "-3", "Most similar image and question"])


@given(st.lists(words, min_size=1, max_size=4), st.integers(-9, 9), st.integers(0, 99))
def test_numbers_survive(tmp_path_factory: pytest.TempPathFactory, items: list[str], first: int, second: int) -> None:
    path = tmp_path_factory.getbasetemp() / "words.yaml"
    path.write_text(HEAD + SMALL, encoding="utf-8")
    listed = items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
    text = f"Published {listed}: Mean ({first}) Accuracy at {first} samples, epoch {second}"
    for english in (text, f"Published {listed}: Mean (x {first})", f"Accuracy at {first} samples, epoch {second}"):
        translated, _ = read_glossary([path]).translate(english)
        assert Counter(numbers_in(translated)) == Counter(numbers_in(english))
