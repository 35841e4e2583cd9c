from __future__ import annotations

import base64
import csv
import hashlib
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import example, ids
from PIL import Image

from lever_pipe.base import storage
from lever_pipe.base.errors import ImageError
from lever_pipe.base.records import AnswerRow, Example, ExampleId, PolicyScores, QuestionScore, Selection
from lever_pipe.experiment.collected import CollectSamplesConfig
from lever_pipe.experiment.data import WorldData
from lever_pipe.lever.samples import Sample, scoring_facts
from lever_pipe.metrics.vqa_accuracy import cut_answer, vqa_accuracy
from lever_pipe.stages.collect_samples import collect_samples
from lever_pipe.world.files import draw_image, image_name
from lever_pipe.world.items import Split, draw_split

WORLD = WorldData(n_train=64, n_eval=12)
RCE, ON_POLICY = "preset~p/rce/seed~0/epoch~2", "preset~p/on_policy/base~2/beta~0/seed~0/epoch~1"
POLICIES = ("baseline/zero_shot", "baseline/similar_both", RCE, ON_POLICY)


def split_of(folder: Path, split: Split) -> list[Example]:
    """Write the pictures of a split of the world and return its examples."""
    folder.mkdir(parents=True)
    found = []
    for picture in draw_split(WORLD, split):
        name = image_name(split, picture.image_id)
        Image.fromarray(draw_image(WORLD, split, picture)).save(folder / name)
        digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for qid, of in picture.questions.items():
            text = {"question": of.text, "question_type": of.type, "answers": of.answers, "answer": of.truth}
            found.append(
                {"question_id": qid, "image_id": picture.image_id, "image": name, **text, "image_digest": digest}
            )
    ordered = sorted(found, key=lambda one: one["question_id"])
    return [example(location, **one) for location, one in enumerate(ordered)]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("run")
    queries, train = split_of(folder / "val", "val"), split_of(folder / "train", "train")
    storage.write_rows(folder / "eval.jsonl", queries)
    storage.write_rows(folder / "train.jsonl", train)
    rng = np.random.default_rng(0)
    for location in range(len(POLICIES)):
        chosen = [ids(rng.permutation(len(train))[:3] if location else []) for _ in queries]
        rows = {(q.example_id, of[:k]): f"{location}{k}" for q, of in zip(queries, chosen, strict=True) for k in (1, 3)}
        answers = [AnswerRow(query_id=q, demonstrations=of, raw=a, answer=a) for (q, of), a in rows.items()]
        storage.write_rows(folder / f"answers{location}", answers)
        picked = [Selection(query_id=q.example_id, demonstrations=of) for q, of in zip(queries, chosen, strict=True)]
        storage.write_rows(folder / f"selections{location}", picked)
        scores = [
            QuestionScore(query_id=q.example_id, shots=k, accuracy=(q.example_id + location) % 2)
            for q in queries
            for k in (1, 3)
        ]
        storage.write_rows(
            folder / f"scores{location}", [PolicyScores(policy=POLICIES[location], questions=tuple(scores))]
        )
    return {
        "selections": tuple(folder / f"selections{location}" for location in range(len(POLICIES))),
        "answers": tuple(folder / f"answers{location}" for location in range(len(POLICIES))),
        "per_question": tuple(folder / f"scores{location}" for location in range(len(POLICIES))),
        "train_examples": folder / "train.jsonl",
        "eval_examples": folder / "eval.jsonl",
        "train_images": folder / "train",
        "eval_images": folder / "val",
    }


def collected(inputs: dict[str, Any], folder: Path, world: WorldData | None = WORLD) -> dict[str, Path]:
    outputs = {name: folder / name for name in ("samples", "gallery", "shares", "copying", "scoring")}
    config = CollectSamplesConfig(main_preset="p", policies=POLICIES, samples=(4, 10), shots=(1, 3), world=world)
    collect_samples(**inputs, **outputs, config=config)
    return outputs


def test_a_line_tells_one_question_and_policy(inputs: dict[str, Any], tmp_path: Path) -> None:
    rows = storage.read_rows(collected(inputs, tmp_path)["samples"], Sample)
    assert [(row.policy, row.query_id) for row in rows] == [(p, q) for p in POLICIES for q in range(12)]
    zero, sampled = rows[0], rows[-1]
    assert (zero.demonstrations, zero.answer, zero.one_shot_answer, zero.seed) == ((), "03", "03", None)
    assert (len(sampled.demonstrations), sampled.answer, sampled.one_shot_answer) == (3, "33", "31")
    assert (sampled.group, sampled.seed, sampled.shots) == ("preset~p/on_policy/base~2/beta~0/epoch~1", 0, 3)
    train = storage.read_examples(inputs["train_examples"])
    for one in sampled.demonstrations:
        assert (one.question, one.answer) == (train[one.id].question, train[one.id].answer)


def test_the_gallery_names_its_policies_and_counts_the_first_questions(inputs: dict[str, Any], tmp_path: Path) -> None:
    displayed = json.loads(collected(inputs, tmp_path)["gallery"].read_text())
    assert displayed["policies"] == {"grpo": ON_POLICY, "rce": RCE, "similarity": "baseline/similar_both"}
    assert displayed["n_different"] == len(displayed["questions"]) == 10
    for entry in displayed["questions"]:
        for row in entry["rows"].values():
            assert len(row["demonstrations"]) == 1  # of 1 and 3 shots, 1 fits


def test_the_gallery_holds_a_thumbnail_of_each_image_that_it_shows(inputs: dict[str, Any], tmp_path: Path) -> None:
    displayed = json.loads(collected(inputs, tmp_path)["gallery"].read_text())
    demonstrations = [
        one for q in displayed["questions"] for row in q["rows"].values() for one in row["demonstrations"]
    ]
    assert displayed["pictures"].keys() == {one["image"] for one in (*displayed["questions"], *demonstrations)}
    assert sum(len(one["uri"]) for one in displayed["pictures"].values()) <= 60_000
    first, queries = displayed["questions"][0], storage.read_examples(inputs["eval_examples"])
    name = next(query.image for query in queries if query.question_id == first["question_id"])
    picture = displayed["pictures"][first["image"]]
    with Image.open(BytesIO(base64.b64decode(picture["uri"].partition(",")[2]))) as small:
        assert small.size == (picture["width"], picture["height"])
        with Image.open(inputs["eval_images"] / name) as whole:
            expected = np.asarray(whole.convert("RGB").resize(small.size), dtype=float)
        assert np.abs(np.asarray(small.convert("RGB"), dtype=float) - expected).mean() < 16
    again = collected(inputs, tmp_path)["gallery"].read_text()
    assert json.loads(again) == displayed


def test_a_missing_image_of_the_gallery_is_named(inputs: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ImageError):
        collected({**inputs, "eval_images": tmp_path}, tmp_path)


def test_copies_are_counted_by_rank_and_a_vote_next_to_the_lvlm(inputs: dict[str, Any], tmp_path: Path) -> None:
    """One policy: question 0 is shown a right answer and given it, the others get answers that are not shown."""
    queries, train = (storage.read_examples(inputs[f"{split}_examples"]) for split in ("eval", "train"))
    right = next(one for one in train if one.answer == queries[0].answers[0])
    wrong = [one for one in train if one.answer not in queries[0].answers]
    chosen = [(wrong[0].example_id, right.example_id, right.example_id), *[(wrong[0].example_id,) * 3] * 11]
    text = [right.answer, *["nowhere"] * 11]
    rows = zip(queries, chosen, text, strict=True)
    answers = [
        AnswerRow(query_id=q.example_id, demonstrations=ids(of[:k]), raw=a, answer=a)
        for q, of, a in rows
        for k in (1, 3)
    ]
    picked = [Selection(query_id=q.example_id, demonstrations=ids(of)) for q, of in zip(queries, chosen, strict=True)]
    storage.write_rows(tmp_path / "answers", answers)
    storage.write_rows(tmp_path / "selections", picked)
    paths = {name: (*inputs[name][:3], tmp_path / name) for name in ("selections", "answers")}
    with collected({**inputs, **paths}, tmp_path)["copying"].open() as handle:
        lines = [of for of in csv.DictReader(handle) if of["group"] == ON_POLICY.replace("seed~0/", "")]
    found = {(of["shots"], of["measure"]): float(of["value"]) for of in lines}
    assert {found["3", f"copied.{rank}"] for rank in (2, 3)} == {found["3", "copied"]} == {0.1}  # of ten questions
    assert (found["3", "copied.1"], found["1", "copied"]) == (0, 0)
    first, other = vqa_accuracy(right.answer, queries[0].answers), [
        vqa_accuracy(wrong[0].answer, query.answers) for query in queries[1:10]
    ]  # fmt: skip
    assert found["3", "shown"] == pytest.approx((1 + sum(earned > 0 for earned in other)) / 10)
    assert found["3", "vote"] == pytest.approx((first + sum(other)) / 10)  # twice right against once wrong
    assert found["1", "vote"] == pytest.approx(sum(other) / 10)
    counts = {of["measure"]: int(of["n"]) for of in lines if of["shots"] == "3"}
    assert counts["llm.shown"] + counts["llm.unshown"] == counts["llm"] == 10
    whole = counts["llm.shown"] * found["3", "llm.shown"] if counts["llm.shown"] else 0
    assert whole + counts["llm.unshown"] * found["3", "llm.unshown"] == pytest.approx(10 * found["3", "llm"])


def test_the_world_knows_what_demonstrations_share_and_other_data_their_type(
    inputs: dict[str, Any], tmp_path: Path
) -> None:
    def rows(world: WorldData | None) -> dict[tuple[str, ...], float]:
        path = collected(inputs, tmp_path, world)["shares"]
        with path.open() as handle:
            lines = list(csv.DictReader(handle))
        return {(of["group"], of["rank"], of["agrees_in"]): float(of["share"]) for of in lines}

    ours, others = rows(WORLD), rows(None)
    assert {key[2] for key in ours} == {"relation", "object", "key", "fact"}
    assert {key[2] for key in others} == {"type"}
    assert {key[0] for key in ours} == {
        "baseline/similar_both",
        "preset~p/rce/epoch~2",
        ON_POLICY.replace("seed~0/", ""),
    }
    for (group, rank, what), share in ours.items():
        if what == "fact":
            assert share == others[group, rank, "type"]
            assert share <= min(ours[group, rank, "relation"], ours[group, rank, "key"])


def test_a_selection_that_ends_early_is_shown_with_what_it_has(inputs: dict[str, Any], tmp_path: Path) -> None:
    few, rows = tmp_path / "few", storage.read_rows(inputs["selections"][3], Selection)
    rows[9] = rows[9].model_copy(update={"demonstrations": rows[9].demonstrations[:1]})
    storage.write_rows(few, rows)
    found = collected({**inputs, "selections": (*inputs["selections"][:3], few)}, tmp_path)
    short = storage.read_rows(found["samples"], Sample)[-3]
    assert (short.query_id, short.shots, len(short.demonstrations), short.answer) == (9, 3, 1, "31")
    with found["shares"].open() as handle:
        lines = [of for of in csv.DictReader(handle) if of["agrees_in"] == "key"]
    counts = {(of["group"], of["rank"]): int(of["n"]) for of in lines}
    sampled, base = ON_POLICY.replace("seed~0/", ""), "preset~p/rce/epoch~2"
    assert [counts[sampled, rank] for rank in "123"] == [10, 9, 9]
    assert [counts[base, rank] for rank in "123"] == [10, 10, 10]


def test_answers_that_the_cut_empties_are_counted_once_a_prompt(inputs: dict[str, Any], tmp_path: Path) -> None:
    texts = ("Shorts", "shorts", "Answer: red", "", "  ", ", ")  # the cut empties the first and third
    rows = [
        AnswerRow(query_id=ExampleId(i), demonstrations=(), raw=text, answer=cut_answer(text))
        for i, text in enumerate(texts)
    ]
    for name, part in (("a", rows), ("b", rows[:2])):  # a prompt of two batches counts once
        storage.write_rows(tmp_path / name, part)
    assert scoring_facts([tmp_path / "a", tmp_path / "b", tmp_path / "a"]) == {"prompts": 6, "emptied": 2 + 1}
    written = json.loads(collected(inputs, tmp_path)["scoring"].read_text())
    assert written["emptied"] == 0 < written["prompts"]
    assert (written["answers"], written["normalise_references"]) == ("stemmed", "when_they_disagree")
