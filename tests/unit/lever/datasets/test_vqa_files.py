"""The official VQA format: its fields are read, and every problem is reported at once."""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
from PIL import Image

from lever_pipe.base.errors import DataError, ImageError
from lever_pipe.base.records import AnswerText
from lever_pipe.lever.datasets import okvqa, vqav2
from lever_pipe.lever.datasets.protocol import ReadOptions, VqaFilePaths
from lever_pipe.metrics.vqa_accuracy import vqa_accuracy

NAME = "COCO_val2014_{image_id:012d}.jpg"


@dataclass
class Raw:
    """Documents in memory; `write` puts them on disk and `read` reads them back."""

    folder: Path
    questions: dict[str, Any]
    annotations: dict[str, Any]

    @property
    def files(self) -> VqaFilePaths:
        return VqaFilePaths(self.folder / "questions.json", self.folder / "annotations.json", self.folder / "images")

    def write(self) -> VqaFilePaths:
        self.files.questions.write_text(json.dumps(self.questions))
        self.files.annotations.write_text(json.dumps(self.annotations))
        return self.files

    def image(self, image_id: int) -> Path:
        return self.files.images / NAME.format(image_id=image_id)

    def error(self, **options: Any) -> str:
        with pytest.raises(DataError) as caught:
            okvqa.read(self.write(), ReadOptions(NAME, **options))
        return str(caught.value)


# Question 40 + i is about image 7 + i; 41 and 43 share image 8. The files list them in another order.
IMAGE_OF = {43: 8, 40: 7, 42: 9, 41: 8}
ANSWERS = ["red", "blue", "blue", "red", "blue", "red", "green", "green", "pink", "grey"]


def annotation(question_id: int, image_id: int) -> dict[str, Any]:
    answers = [
        {"answer_id": i, "raw_answer": f"{a}s", "answer_confidence": "yes", "answer": a}
        for i, a in enumerate(ANSWERS, 1)
    ]
    return {
        "image_id": image_id,
        "question_id": question_id,
        "question_type": "four",
        "answer_type": "other",
        "answers": answers,
        "confidence": 3,
    }


@pytest.fixture
def raw(tmp_path: Path) -> Raw:
    common = {"info": {}, "license": {}, "data_type": "mscoco", "data_subtype": "val2014"}
    entries = [{"image_id": i, "question": f"What is {q}?", "question_id": q} for q, i in IMAGE_OF.items()]
    questions = {**common, "task_type": "Open-Ended", "questions": entries}
    annotations = {**common, "question_types": {}, "annotations": [annotation(q, i) for q, i in IMAGE_OF.items()]}
    (tmp_path / "images").mkdir()
    found = Raw(tmp_path, questions, annotations)
    for image_id in set(IMAGE_OF.values()):
        Image.new("RGB", (40, 30), (image_id * 10, 0, 0)).save(found.image(image_id))
    return found


def test_reads_examples_in_question_id_order(raw: Raw) -> None:
    result = okvqa.read(raw.write(), ReadOptions(NAME))
    assert [e.question_id for e in result.examples] == [40, 41, 42, 43]
    assert [e.example_id for e in result.examples] == [0, 1, 2, 3]
    first = result.examples[0]
    assert (first.question, first.image_id, first.image) == ("What is 40?", 7, "COCO_val2014_000000000007.jpg")
    assert first.image_digest == hashlib.sha256(raw.image(7).read_bytes()).hexdigest()
    assert first.answers == tuple(ANSWERS)  # `answer`, which VQA accuracy compares, not `raw_answer`
    assert first.question_type == "four"
    assert result.skipped_images == {}


@pytest.mark.parametrize(
    ("stemmed", "words"),
    [("race", "racing"), ("pony tail", "ponytail"), ("surf", "surfing")],  # of OK-VQA's own files
)
def test_raw_answers_are_the_annotators_words(raw: Raw, stemmed: str, words: str) -> None:
    for entry in raw.annotations["annotations"]:
        entry["answers"] = [{"answer": stemmed, "raw_answer": words}] * 10
    files = raw.write()
    one = {text: okvqa.read(files, ReadOptions(NAME, answers=text)).examples[0] for text in get_args(AnswerText)}
    assert (one["stemmed"].answers, one["stemmed"].answer) == ((stemmed,) * 10, stemmed)
    assert (one["raw"].answers, one["raw"].answer) == ((words,) * 10, words)
    assert [vqa_accuracy(words, one[text].answers) for text in ("stemmed", "raw")] == [0.0, 1.0]


def test_raw_answers_that_are_not_there_are_named(raw: Raw) -> None:
    del raw.annotations["annotations"][0]["answers"][3]["raw_answer"]  # of question 43
    error = raw.error(answers="raw")
    assert "no raw_answer in annotations.json, which data.answers: raw reads: 1 (43)" in error
    okvqa.read(raw.write(), ReadOptions(NAME))


def test_okvqa_shows_the_most_frequent_answer_first_met_among_ties(raw: Raw) -> None:
    # red and blue are both given three times; red is met first.
    assert {e.answer for e in okvqa.read(raw.write(), ReadOptions(NAME)).examples} == {"red"}


def test_a_drawn_subset_is_in_id_order_and_fewer_are_some_of_more(raw: Raw) -> None:
    def ids(limit: int, seed: int | None) -> list[int]:
        examples = okvqa.read(raw.write(), ReadOptions(NAME, limit=limit, seed=seed)).examples
        assert [e.example_id for e in examples] == list(range(limit))
        return [e.question_id for e in examples]

    assert ids(2, None) == [40, 41]
    sampled = {seed: [ids(limit, seed) for limit in (1, 2, 3, 4)] for seed in range(12)}
    for subsets in sampled.values():
        assert all(subset == sorted(subset) for subset in subsets)
        assert all(set(fewer) < set(more) for fewer, more in itertools.pairwise(subsets))
    # Twelve seeds leave one of the four undrawn with probability 0.13; these do not.
    assert {subsets[0][0] for subsets in sampled.values()} == {40, 41, 42, 43}
    assert ids(3, 5) == sampled[5][2]


def test_vqav2_shows_the_multiple_choice_answer(raw: Raw) -> None:
    for entry in raw.annotations["annotations"]:
        entry["multiple_choice_answer"] = f"choice {entry['question_id']}"
        del entry["confidence"]
        for answer in entry["answers"]:
            del answer["raw_answer"]
    examples = vqav2.read(raw.write(), ReadOptions(NAME)).examples
    assert [e.answer for e in examples] == ["choice 40", "choice 41", "choice 42", "choice 43"]


def test_limit_reads_the_first_in_question_id_order_and_only_their_images(raw: Raw) -> None:
    raw.image(9).unlink()  # the image of question 42, the third
    result = okvqa.read(raw.write(), ReadOptions(NAME, limit=2))
    assert [e.question_id for e in result.examples] == [40, 41]
    assert "COCO_val2014_000000000009.jpg" in raw.error(limit=3)
    raw.image(9).touch()
    with pytest.raises(ImageError, match="COCO_val2014_000000000009"):
        okvqa.read(raw.files, ReadOptions(NAME, limit=99))


def test_skipping_counts_questions_and_keeps_positions_without_gaps(raw: Raw) -> None:
    raw.image(8).write_bytes(b"no image")
    result = okvqa.read(raw.write(), ReadOptions(NAME, on_bad_image="skip"))
    assert [(e.example_id, e.question_id) for e in result.examples] == [(0, 40), (1, 42)]
    assert result.skipped_images == {"COCO_val2014_000000000008.jpg": 2}
    assert result.n_skipped_questions == 2


def test_annotators_other_than_ten_are_an_option(raw: Raw) -> None:
    for entry in raw.annotations["annotations"]:
        entry["answers"] = entry["answers"][:3]
    examples = okvqa.read(raw.write(), ReadOptions(NAME, n_answers=3)).examples
    assert {e.answer for e in examples} == {"blue"}  # red, blue, blue
