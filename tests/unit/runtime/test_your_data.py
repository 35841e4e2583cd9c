"""A user's own data: the page's configuration unchanged, a tiny data set, and the output of `doctor --data`."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from builders import shipped
from PIL import Image

from lever_pipe.__main__ import main
from lever_pipe.base import storage
from lever_pipe.base.contents import Digests
from lever_pipe.base.seeding import generator
from lever_pipe.experiment.plans.grid import data_name
from lever_pipe.experiment.plans.report import shown_studies
from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.lever.datasets import okvqa
from lever_pipe.lever.datasets._splits import read_queries, read_train
from lever_pipe.lever.datasets.protocol import VqaFilePaths
from lever_pipe.runtime.checks import local_checks
from lever_pipe.runtime.checks.findings import Level, Outcome
from lever_pipe.runtime.reruns import own_images

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/your-data.md").read_text(encoding="utf-8")
N = {"train": 70, "eval": 40}
FIRST_IMAGE = {"train": 1, "eval": 501}
IMAGE_1, IMAGE_3 = "COCO_train2014_000000000001.png", "COCO_train2014_000000000003.png"


@dataclass
class Mine:
    """A data set laid out as on the page; `write` puts questions and annotations on disk."""

    root: Path
    questions: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    annotations: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.root / "mine/images").mkdir(parents=True)
        for split, number in N.items():
            images = [FIRST_IMAGE[split] + i // 2 for i in range(number)]  # two questions about each
            for image in set(images):
                pixels = generator(0, "mine", image).integers(256, size=(40, 48, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(self.image(image))
            ids = [(10 * image + i % 2, image) for i, image in enumerate(images)]
            self.questions[split] = [{"question_id": q, "image_id": i, "question": f"What is {q}?"} for q, i in ids]
            self.annotations[split] = [
                {"question_id": q, "image_id": i, "answers": [{"answer": "cup"}] * 10} for q, i in ids
            ]

    def image(self, image_id: int) -> Path:
        split = "train" if image_id < FIRST_IMAGE["eval"] else "val"
        return self.root / f"mine/images/COCO_{split}2014_{image_id:012d}.png"

    def write(self) -> Path:
        """Return the page's configuration, with the folder before each path."""
        for split in N:
            for kind in ("questions", "annotations"):
                rows = {kind: getattr(self, kind)[split]}
                (self.root / f"mine/{split}_{kind}.json").write_text(json.dumps(rows))
        (block,) = re.findall(r"```yaml\n(# mine.yaml\n.*?)```", PAGE, re.DOTALL)
        path = self.root / "mine.yaml"
        path.write_text(re.sub(r"(?<![\w/])(mine|results)/", rf"{self.root}/\1/", block))
        return path

    def experiment(self) -> Experiment:
        values = shipped()
        mine = yaml.safe_load(self.write().read_text())
        return parse_experiment({**values, **mine, "rl_data": {**values["rl_data"], **mine["rl_data"]}})

    def found(self) -> list[Outcome]:
        return list(local_checks.data(self.experiment(), Path()))

    def problem(self) -> str:
        (problem,) = [each for each in self.found() if each.level is Level.PROBLEM]
        return problem.text


@pytest.fixture
def mine(tmp_path: Path) -> Mine:
    return Mine(tmp_path)


def test_sound_data_are_counted(mine: Mine) -> None:
    assert [(each.level, each.found) for each in mine.found()] == [
        (Level.OK, "70 questions about 35 images"),
        (Level.OK, "40 questions about 20 images"),
        (Level.OK, "0 of 40 questions are train questions too"),
    ]


def _lose_an_image(mine: Mine) -> None:
    mine.image(3).unlink()


def _spoil_an_image(mine: Mine) -> None:
    mine.image(3).write_bytes(b"no image")


def _lose_an_annotation(mine: Mine) -> None:
    del mine.annotations["eval"][4]


def _repeat_an_id(mine: Mine) -> None:
    mine.questions["train"][1]["question_id"] = 10


def _answer_twice(mine: Mine) -> None:
    mine.annotations["train"][6]["answers"] *= 2


def _ask_again(mine: Mine) -> None:
    shutil.copy(mine.image(1), mine.image(1).with_name("COCO_val2014_000000000001.png"))
    for rows in (mine.questions, mine.annotations):
        rows["eval"][0] = rows["train"][0]


def _ask_too_little(mine: Mine) -> None:
    for rows in (mine.questions, mine.annotations):
        rows["eval"].pop()


def _show_too_little(mine: Mine) -> None:
    for rows in (mine.questions, mine.annotations):
        rows["train"] = rows["train"][:64]


def _list_alone(mine: Mine) -> None:
    mine.write()
    (mine.root / "mine/eval_questions.json").write_text(json.dumps(mine.questions["eval"]))
    mine.write = lambda: mine.root / "mine.yaml"  # type: ignore[method-assign]


def _answer_in_words(mine: Mine) -> None:
    for annotation in mine.annotations["train"]:
        annotation["answers"] = ["yellow"]


@pytest.mark.parametrize(
    ("corruption", "parts"),
    [
        (_lose_an_image, [f"which contains {IMAGE_1}: 1 ({IMAGE_3})", "train_questions.json", "Correct these entries"]),
        (_spoil_an_image, ["mine/images", f"({IMAGE_3})", 'set data.on_bad_image to "skip"']),
        # Pairs of questions share an image from 501 on: the fifth is the first about image 503.
        (_lose_an_annotation, ["question without annotation: 1 (5030)", "eval_annotations.json"]),
        (_repeat_an_id, ["duplicate question id in train_questions.json: 1 (10)", "without question: 1 (11)"]),
        (_answer_twice, ["wrong answer count, expected 10: 1 (question 40: 20)", "train_annotations.json"]),
        (_ask_again, ["1 that are (question ids 10)", "train_questions.json", "Take them out of one split"]),
        (_show_too_little, ["train_questions.json", "found 64. pools.size must be below questions=64"]),
        (_list_alone, ["eval_questions.json: the file must be an object: 1 ((whole file) is a list)"]),
        (
            _answer_in_words,
            ['answers must be objects like {"answer": "cup"}: 70 (annotations[0].answers[0] is the string "yellow", '],
        ),
        (_ask_too_little, ["at least 40 questions", "found 39", "Lower data.n_eval"]),
    ],
)  # fmt: skip
def test_a_problem_is_told_with_file_id_and_remedy(
    mine: Mine, corruption: Callable[[Mine], None], parts: list[str]
) -> None:
    corruption(mine)
    text = mine.problem()
    for part in parts:
        assert part in text


def test_the_pages_first_command_looks_at_everything(mine: Mine, capsys: pytest.CaptureFixture[str]) -> None:
    config = mine.write()
    (command,) = re.findall(r"^\.venv/bin/(lever-pipe doctor .*?) +#", PAGE, re.MULTILINE)
    _, *words = command.replace("mine.yaml", str(config)).split()
    assert main(words) == 0
    assert "70 questions about 35 images" in capsys.readouterr().out
    _lose_an_image(mine)
    assert main(words) == 2
    assert f"({IMAGE_3})" in capsys.readouterr().out


@pytest.mark.parametrize("subset", ["prefix", "random"])
def test_the_plan_lists_exactly_the_images_that_a_split_reads(mine: Mine, subset: str) -> None:
    data = mine.experiment().data.model_copy(update={"n_eval": 11, "eval_subset": subset})
    for split, read in (("train", read_train), ("eval", read_queries)):
        files = VqaFilePaths(
            *(Path(getattr(data.files, f"{split}_{k}")) for k in ("questions", "annotations", "images"))
        )
        read_images = {example.image: example.image_digest for example in read(files, data).examples}
        listing = mine.root / f"{split}.txt"
        assert own_images.write_listing(listing, data, split, Digests()) == read_images
        assert storage.read_listing(listing) == read_images


def test_a_second_plan_reads_no_image_and_keeps_the_listing(mine: Mine) -> None:
    data, memory, listing = mine.experiment().data, mine.root / "memory.json", mine.root / "list"
    for image in (mine.root / "mine/images").iterdir():
        os.utime(image, (1_600_000_000, 1_600_000_000))
    now = time.time_ns()
    with pytest.MonkeyPatch.context() as patch:  # files that have just changed are not remembered
        patch.setattr("lever_pipe.base.contents.time.time_ns", lambda: now + 10**11)
        own_images.write_listing(listing, data, "train", Digests(memory))
    before, digests = listing.stat(), Digests(memory)
    own_images.write_listing(listing, data, "train", digests)
    assert (digests.read_bytes, listing.stat().st_mtime_ns) == (0, before.st_mtime_ns)


def test_a_missing_image_is_named_with_its_question_before_a_run(mine: Mine) -> None:
    experiment = mine.experiment()
    mine.image(3).unlink()
    found = local_checks.raw_data(experiment, rules={"prepare_examples"}, folder=Path())
    (problem,) = [outcome for outcome in found if outcome.level is Level.PROBLEM]
    assert f"{mine.image(3)} (question 30, entry 5 of {mine.root}/mine/train_questions.json)" in problem.found


def test_problems_of_both_splits_are_told_at_once(mine: Mine) -> None:
    _lose_an_annotation(mine)
    _answer_twice(mine)
    assert [each.level for each in mine.found()] == [Level.PROBLEM, Level.PROBLEM]


def test_own_data_and_the_embedded_reader_are_called_what_they_are(mine: Mine) -> None:
    given = mine.experiment().model_copy(update={"studies": ("lever",)})
    files = given.data.files.eval_questions
    given = given.model_copy(update={"lvlm": given.lvlm.model_copy(update={"model": "resources/world/lvlm"})})
    (study,) = shown_studies(given)
    assert (study.is_world, study.data, study.model) == (False, files, "embedded Qwen2.5-VL")
    assert 650_000 < study.parameters < 750_000
    other = given.model_copy(update={"lvlm": given.lvlm.model_copy(update={"model": "models/mine"})})
    (study,) = shown_studies(other)
    assert (study.data, study.model, study.parameters) == (files, "mine", 0)
    assert (data_name(given.data), data_name(given.data, "fruit")) == (files, "fruit")


def test_images_that_may_replace_unreadable_ones_are_listed_too(mine: Mine) -> None:
    data = mine.experiment().data.model_copy(update={"n_eval": 11, "on_bad_image": "skip"})
    assert len(own_images.write_listing(mine.root / "list", data, "eval", Digests())) == N["eval"] // 2
    mine.image(FIRST_IMAGE["eval"] + 19).unlink()
    assert own_images.missing(data, "eval") == "", "no question among the first 11 is about it"


def test_a_reader_that_names_no_images_has_all_of_its_folder_listed(
    mine: Mine, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = mine.experiment().data
    monkeypatch.delattr(okvqa, "asked_images")
    assert len(own_images.write_listing(mine.root / "list", data, "train", Digests())) == sum(N.values()) // 2
