"""`python -m lever_pipe compare`: what two policies and two runs have in common, in text and as JSON."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import example

from lever_pipe.__main__ import main
from lever_pipe.base import storage
from lever_pipe.base.records import EpochMetrics, ExampleId, PolicyRef, QuestionScore, RunCard, Selection
from lever_pipe.base.seeding import generator
from lever_pipe.statistics.comparison import sign_flip_p

QUESTIONS = 40
SHOTS = (1, 2)
A, B = "preset~p/rce/seed~0/epoch~5", "preset~p/grpo/base~5/beta~0.15/seed~0/epoch~1"


def answers(policy: str) -> np.ndarray:
    """Return [N, K] of right or wrong."""
    return generator(0, policy.replace("preset~q", "preset~p")).random((QUESTIONS, len(SHOTS))) < 0.6


def card(stage: str, config: dict[str, Any], *, examples: str = "e", code: str = "c") -> RunCard:
    common = {"commit": "f" * 40, "dirty": False, "versions": {"numpy": "2"}, "device": "cpu", "threads": 1}
    return RunCard(
        stage=stage, config=config, inputs={"eval_examples": examples * 64}, code=code, seconds=1.0, **common
    )


def write_policy(study: Path, name: str, *, examples: str = "e", rate: float = 0.1, shift: int = 0) -> None:
    folder = study / name
    values = answers(name)
    scores = [
        QuestionScore(query_id=ExampleId(q), shots=k, accuracy=float(values[q, column]))
        for column, k in enumerate(SHOTS)
        for q in range(QUESTIONS)
    ]
    storage.write_rows(folder / "scores/per_question.jsonl", scores)
    for k in SHOTS:
        storage.write_json(folder / f"scores/samples~40/shots~{k}.json", {})
    storage.write_row(folder / "scores/run.json", card("score_answers", {"samples": [40]}, examples=examples))
    # the first query is shown other demonstrations, the second the same in another order
    chosen = [(1 + shift, 2), (2, 1) if shift else (1, 2), *[(1, 2)] * (QUESTIONS - 2)]
    rows = [Selection(query_id=ExampleId(q), demonstrations=tuple(map(ExampleId, d))) for q, d in enumerate(chosen)]
    storage.write_rows(folder / "selections.jsonl", rows)
    if name.startswith("preset~"):
        stage = name.split("/")[1]
        policy = PolicyRef(name=name, stage="grpo" if stage == "on_policy" else stage, preset="p")  # type: ignore[arg-type]
        storage.write_row(folder / "metrics.json", EpochMetrics(policy=policy, values={"loss": rate, stage: 1.0}))
        storage.write_row(folder / "run.json", card(f"train_{stage}_epoch", {stage: {"learning_rate": rate}}))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    study = tmp_path / "results" / "lever"
    write_policy(study, A)
    write_policy(study, B, rate=0.2, shift=10)
    for seed in (1, 2):
        write_policy(study, f"preset~p/rce/seed~{seed}/epoch~5")
    for draw in (0, 1):
        write_policy(study, f"baseline/random-{draw}")
    write_policy(study, "baseline/oracle")
    return tmp_path / "results"


def compare(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["compare", *map(str, words)]) == 0
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(compare(capsys, *words, "--json"))
    return found


def fault(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["compare", *map(str, words)]) == 2
    return capsys.readouterr().err


def test_two_checkpoints(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, B, A, "--results", results)
    left, right = answers(B).astype(float), answers(A).astype(float)
    for line, column in zip(found["accuracies"], (0, 1, slice(None)), strict=True):
        one, other = (side[:, column].reshape(QUESTIONS, -1).mean(axis=1) for side in (left, right))
        assert line["left"] == pytest.approx(100 * one.mean(), abs=1e-9)
        assert line["difference"] == pytest.approx(100 * (one - other).mean(), abs=1e-9)
        assert line["p"] == pytest.approx(sign_flip_p(one - other, generator=generator(0)), abs=1e-12)
        assert line["low"] < line["difference"] < line["high"]
    assert [line["shots"] for line in found["accuracies"]] == ["1", "2", "mean"]
    assert found["runs"] == [1, 1]
    assert found["metrics"] == [
        {"metric": "grpo", "left": 1.0, "right": None},
        {"metric": "loss", "left": 0.2, "right": 0.1},
        {"metric": "rce", "left": None, "right": 1.0},
    ]
    # of 40 queries one has another first demonstration, and a second one the same two in another order
    assert found["agreement"] == [
        {"shots": 1, "same_sequence": 95.0, "same_set": 95.0},
        {"shots": 2, "same_sequence": 95.0, "same_set": 97.5},
    ]
    differing = {(line["where"], line["key"]): (line["left"], line["right"]) for line in found["differences"]}
    assert differing == {
        ("training", "config.grpo.learning_rate"): ("0.2", "absent"),
        ("training", "config.rce.learning_rate"): ("absent", "0.1"),
    }


def test_a_person_can_read_it(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = compare(capsys, B, A, "--results", results)
    assert text.startswith(f"A  {B}  (1 run)\nB  {A}  (1 run)\n")
    for head in ("Accuracy in percent, 40 questions", "Training metrics", "Same demonstrations", "What differs"):
        assert f"\n{head}" in text
    assert re.search(r"^ +mean +\d+\.\d\d +\d+\.\d\d +[+-]\d+\.\d\d ", text, flags=re.MULTILINE)
    assert "these very checkpoints, not for further seeds" in text
    assert max(map(len, text.splitlines())) < 220
    assert "nan" not in text


def test_a_name_without_seed_means_all_seeds(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "preset~p/rce/epoch~5", "baseline/random", "--results", results)
    assert found["runs"] == [3, 2]
    assert found["left"] == "preset~p/rce/epoch~5"
    means = [100 * np.mean([answers(f"baseline/random-{draw}")[:, 0] for draw in (0, 1)])]
    assert [found["accuracies"][0]["right"]] == pytest.approx(means, abs=1e-9)
    # every one of 3 x 2 pairs chooses alike
    assert found["agreement"][1] == {"shots": 2, "same_sequence": 100.0, "same_set": 100.0}
    assert "Student's t" in compare(capsys, "preset~p/rce/epoch~5", "baseline/random", "--results", results)


def test_a_folder_is_a_policy_too(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, results / "lever" / A, f"{results}/lever/baseline/oracle/")
    assert (found["left"], found["right"]) == (A, "baseline/oracle")


def test_a_policy_and_itself(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = compare(capsys, A, A, "--results", results)
    assert "What differs\nNothing in the run cards." in text
    found = as_json(capsys, A, A, "--results", results)
    assert all((line["difference"], line["p"]) == (0.0, 1.0) for line in found["accuracies"])


def test_other_questions_are_not_paired(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_policy(tmp_path / "other" / "lever", A, examples="x")
    found = as_json(capsys, results / "lever" / A, tmp_path / "other" / "lever" / A)
    assert all(line["p"] is None and line["low"] is None for line in found["accuracies"])
    text = compare(capsys, results / "lever" / A, tmp_path / "other" / "lever" / A)
    assert "other questions: no interval and no test" in text


def test_it_is_said_first_that_and_how_the_questions_differ(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other" / "lever"
    for name in (A, B):
        write_policy(other, name, examples="x", shift=10 * (name == B))
    rows = [example(i) for i in range(40)]
    changed = [rows[2].model_copy(update={"question": "else?"}), rows[3].model_copy(update={"image_digest": "else"})]
    storage.write_rows(results / "lever/examples/eval.jsonl", rows)
    storage.write_rows(other / "examples/eval.jsonl", [*changed, *rows[4:40], *(example(i) for i in range(40, 45))])
    told = "A has 40 questions, B 43: 38 are in both by their id, of these 2 with other words, images or answers; "
    for words in ((results / "lever" / A, other / A), (results, other.parent)):
        parts = compare(capsys, *words).split("\n\n")
        assert parts[1].startswith("A and B were scored on other questions: no interval and no test")
        assert f"\n{told}2 are only in A, 5 only in B." in parts[1]
        assert not any(part.startswith("Same demonstrations") for part in parts)
        sets = as_json(capsys, *words)["question_sets"]
        assert sets == {"left": 40, "right": 43, "common": 38, "changed": 2}
    assert as_json(capsys, A, B, "--results", results)["question_sets"] is None


def test_an_unknown_policy_is_suggested(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = fault(capsys, "preset~p/rce/sed~0/epoch~5", A, "--results", results)
    assert text.startswith("UnknownMemberError: compare: expected a policy of ")
    assert f"Did you mean '{A}'?" in text
    assert "or give --results" in fault(capsys, "zzzzzzzz", A, "--results", results)


def test_missing_scores_name_what_to_run(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = results / "lever" / A / "scores/per_question.jsonl"
    path.unlink()
    text = fault(capsys, A, B, "--results", results)
    assert text == f"ComparisonError: compare: expected scores of {A}; found none. Run: snakemake {path}\n"


def test_two_of_a_kind(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "expected two policies or two results folders" in fault(capsys, A, results, "--results", results)


def test_two_runs(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    write_policy(other / "lever", A, rate=0.3)
    write_policy(other / "lever", "baseline/oracle")
    write_policy(other / "lever", "baseline/similar_both")
    better = storage.read_rows(other / "lever" / A / "scores/per_question.jsonl", QuestionScore)
    storage.write_rows(
        other / "lever" / A / "scores/per_question.jsonl", [row.model_copy(update={"accuracy": 1.0}) for row in better]
    )
    found = as_json(capsys, results, other)
    assert [row["group"] for row in found["groups"]] == ["preset~p/rce/epoch~5", "baseline/oracle"]
    first, second = found["groups"]
    mean = 100 * np.mean([answers(f"preset~p/rce/seed~{seed}/epoch~5") for seed in (0, 1, 2)])
    assert first["difference"] == pytest.approx(mean - 100, abs=1e-9)
    assert (second["difference"], second["p"], second["p_holm"]) == (0.0, 1.0, 1.0)
    assert first["p_holm"] == pytest.approx(2 * first["p"], rel=1e-9)
    assert found["only_right"] == [f"baseline/similar_both/scores/samples~40/shots~{k}" for k in SHOTS]
    assert f"{B}/scores/samples~40/shots~1" in found["only_left"]
    rate = {"where": "train_rce_epoch", "key": "config.rce.learning_rate", "left": "0.1", "right": "0.3", "n_cards": 1}
    assert found["differences"] == [rate]
    text = compare(capsys, results, other)
    assert "Accuracy in percent, mean over shots, by size of difference" in text
    assert re.search(r"Only in B\n\npolicy +cells\n[- ]+\nbaseline/similar_both +samples~40/shots~1, ", text)


def test_policies_of_every_objective_are_found(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn, upper = "preset~p/on_policy/base~5/beta~0.15/seed~0/epoch~1", "preset~p/distil/base~5/seed~0/epoch~1"
    for name in (drawn, upper):
        write_policy(results / "lever", name)
    found = as_json(capsys, drawn.replace("/seed~0", ""), B, "--results", results)
    assert (found["left"], found["right"]) == (drawn, B)  # offline GRPO of the same beta and epoch is another policy
    values = [100 * answers(name).mean(axis=0) for name in (drawn, B)]
    assert [line["difference"] for line in found["accuracies"][:2]] == pytest.approx(list(values[0] - values[1]))
    assert as_json(capsys, upper, drawn, "--results", results)["right"] == drawn
    assert "Did you mean 'preset~p/on_policy/base~5/beta~0.15/epoch~1'?" in fault(
        capsys, "preset~p/on_policy/base~5/beta~0.1/epoch~1", A, "--results", results
    )


def test_runs_without_a_common_policy(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_policy(tmp_path / "other" / "lever", "baseline/similar_both")
    assert "expected a policy that both" in fault(capsys, results, tmp_path / "other")


def test_runs_on_other_questions_have_no_test(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_policy(tmp_path / "other" / "lever", "baseline/oracle", examples="x")
    (row,) = as_json(capsys, results, tmp_path / "other")["groups"]
    assert (row["p"], row["p_holm"], row["low"]) == (None, None, None)
    assert not math.isnan(row["difference"])


def test_it_needs_no_torch(results: Path) -> None:
    probe = (
        "import sys; from lever_pipe.__main__ import main; "
        f"main(['compare', {A!r}, {B!r}, '--results', {str(results)!r}]); "
        "sys.exit(int(any(name in sys.modules for name in ('torch', 'transformers'))))"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True)
