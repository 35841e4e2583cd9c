"""The LVLM's scores with demonstrations that are blank, moved or reversed."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from builders import example
from lvlm_world import LVLM, lvlm_config, world

from lever_pipe.base import storage
from lever_pipe.base.records import Example, Selection
from lever_pipe.experiment.lvlm import AnswerControlsConfig, AnswerPromptsConfig
from lever_pipe.stages.answers import answer_prompts
from lever_pipe.stages.controls import CONTROLS, answer_controls, controlled

N = 10
POLICIES = ("baseline/oracle", "preset~p/rce/seed~0/epoch~2")


def parts_of(displayed: list[Example]) -> list[tuple[str, str, str]]:
    return [(one.question, one.image_digest, one.answer) for one in displayed]


def examples(n: int) -> list[Example]:
    return [example(i, question=f"q{i}", image_digest=f"d{i}", answer=f"a{i}") for i in range(n)]


def test_each_control_changes_one_thing_of_three_demonstrations() -> None:
    displayed = {control: parts_of(controlled(control, examples(3), "none")) for control in CONTROLS}
    assert displayed == {
        "blank": [("q0", "none", "a0"), ("q1", "none", "a1"), ("q2", "none", "a2")],
        "moved": [("q0", "d0", "a1"), ("q1", "d1", "a2"), ("q2", "d2", "a0")],
        "reversed": [("q2", "d2", "a2"), ("q1", "d1", "a1"), ("q0", "d0", "a0")],
    }


@pytest.mark.skipif(not LVLM.is_dir(), reason="the embedded world's model is not there")
def test_earnings_are_those_of_the_prompts_that_the_controls_make(tmp_path: Path) -> None:
    """A lone demonstration equals its own reverse, and no other demonstration can provide its answer."""
    train = storage.read_examples(world() / "train.jsonl")
    same = {one.example_id: [o.example_id for o in train if o.answer == one.answer and o != one] for one in train}
    queries = [one for one in train if same[one.example_id]][:N]
    other = [next(o.example_id for o in train if o.answer != one.answer) for one in queries]
    chosen = {"oracle": [same[one.example_id][0] for one in queries], "rce": other}
    selections = []
    for name, of in chosen.items():
        rows = [Selection(query_id=location, demonstrations=(one,)) for location, one in enumerate(of)]
        storage.write_rows(tmp_path / name, rows)
        selections.append(tmp_path / name)
    placed = [one.model_copy(update={"example_id": location}) for location, one in enumerate(queries)]
    storage.write_rows(tmp_path / "eval.jsonl", placed)
    files: dict[str, Any] = {
        "selections": tuple(selections), "train_examples": world() / "train.jsonl", "lvlm": LVLM,
        "eval_examples": tmp_path / "eval.jsonl", "counters": tmp_path / "counters.json",
        **dict.fromkeys(("train_images", "eval_images"), world() / "train_images"),
    }  # fmt: skip
    config = AnswerControlsConfig(lvlm=lvlm_config(), policies=POLICIES, questions=N, shots=1)
    answer_controls(**files, controls=tmp_path / "controls.csv", blank=tmp_path / "blank.png", config=config)
    with (tmp_path / "controls.csv").open() as handle:
        found = {(row["group"], row["measure"]): row for row in csv.DictReader(handle)}
    groups = ("baseline/oracle", "preset~p/rce/epoch~2")
    assert list(found) == [(group, f"llm.{control}") for group in groups for control in CONTROLS]
    assert {(row["shots"], row["n"]) for row in found.values()} == {("1", str(N))}
    answer_prompts(**files, answers=tmp_path / "answers", config=AnswerPromptsConfig(lvlm=lvlm_config(), shots=(1,)))
    text = storage.read_answers(tmp_path / "answers")
    for group, of in zip(groups, chosen.values(), strict=True):
        right = [sum(text[location, (one,)] == a for a in queries[location].answers) for location, one in enumerate(of)]
        plain = sum(min(1.0, n / 3) for n in right) / N
        assert abs(plain - float(found[group, "llm.moved"]["value"])) < 0.1  # leave-one-out averages of ten annotators
        assert found[group, "llm.moved"]["value"] == found[group, "llm.reversed"]["value"]
    blank, seen = (float(found["baseline/oracle", f"llm.{control}"]["value"]) for control in ("blank", "reversed"))
    assert blank < seen  # the reader finds an answer through the demonstration's image
