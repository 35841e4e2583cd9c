from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from trained_world import CODE, N_TEST, N_VAL, evaluate_here, evaluation_of, train_here, training, world

from lever_pipe.base import storage
from lever_pipe.base.errors import CheckpointError
from lever_pipe.experiment.agent_evaluation import EvaluateStartConfig
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.intention.records import DialogueRow, DoneRow, EpisodeRow, EvaluationRow
from lever_pipe.stages import agent_evaluation as stage
from lever_pipe.stages.agent_evaluation import evaluate_start


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    train_here(folder, training(steps=3, evaluation={"every": 1, "test_samples": 3}))
    return folder


@pytest.mark.parametrize("best_step", [1, 3], ids=["best before the end", "best at the end"])
def test_both_policies_are_evaluated_and_equal_ones_once(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch, best_step: int
) -> None:
    finished = storage.read_row(run / "done.json", DoneRow)
    done = tmp_path / "done.json"
    storage.write_row(done, finished.model_copy(update={"best_step": best_step}))
    loaded = []
    whole = stage.load_player
    monkeypatch.setattr(
        stage, "load_player", lambda folder, *a, **k: loaded.append(folder.name) or whole(folder, *a, **k)
    )
    evaluate_here(run, tmp_path, done, training(steps=3, evaluation={"test_samples": 3}))
    assert loaded == (["last"] if best_step == 3 else ["last", "best"])
    rows = storage.read_rows(tmp_path / "evaluations.jsonl", EvaluationRow)
    assert [(row.checkpoint, row.step, row.mode, row.n_samples, row.n_tasks) for row in rows] == [
        (checkpoint, step, mode, n, N_TEST)
        for checkpoint, step in (("last", 3), ("best", best_step))
        for mode, n in (("greedy", 1), ("sampled", 3))
    ]
    assert {row.split for row in rows} == {"test"}
    assert finished.best_step < 3
    assert (rows[1].values == rows[3].values) is (best_step == 3)
    episodes = storage.read_rows(tmp_path / "episodes.jsonl", EpisodeRow)
    assert len(episodes) == 2 * N_TEST * (1 + 3)
    greedy = [row for row in episodes if row.mode == "greedy"]
    dialogues = storage.read_rows(tmp_path / "dialogues.jsonl", DialogueRow)
    assert [
        EpisodeRow.model_validate(row.model_dump(include=set(EpisodeRow.model_fields))) for row in dialogues
    ] == greedy
    assert all(len(row.turns) == len(row.rewards) for row in dialogues)


def test_the_start_policy_plays_as_every_run_does_before_its_first_step(tmp_path: Path, run: Path) -> None:
    """On the validation tasks its greedy episodes, which use no randomness, equal the ones of step 0."""
    whole = evaluation_of(training(evaluation={"test_samples": 3})).model_dump(exclude={"arm", "seed"})
    outputs = {name: tmp_path / f"{name}.jsonl" for name in ("evaluations", "episodes")}
    policy = world() / "policy"
    evaluate_start(
        test_tasks=world() / "val.jsonl",
        start=tuple(policy / name for name in ("model.safetensors", "config.json", "words.json")),
        **outputs,
        config=EvaluateStartConfig(**whole),
        runtime=Runtime(code=CODE),
    )
    rows = storage.read_rows(outputs["evaluations"], EvaluationRow)
    assert [(row.step, row.split, row.checkpoint, row.mode) for row in rows] == [
        (0, "test", "last", "greedy"),
        (0, "test", "last", "sampled"),
    ]
    at_zero = storage.read_rows(run / "evaluations.jsonl", EvaluationRow)[0]
    assert (at_zero.step, at_zero.mode, at_zero.values) == (0, "greedy", rows[0].values)
    episodes = storage.read_rows(outputs["episodes"], EpisodeRow)
    validated = storage.read_rows(run / "episodes.jsonl", EpisodeRow)
    assert [row.rewards for row in episodes[:N_VAL]] == [row.rewards for row in validated[:N_VAL]]


def test_the_best_policy_of_a_run_is_a_start_as_it_is_and_a_changed_one_none(tmp_path: Path, run: Path) -> None:
    """An agent starts from `intention.model.folder`: the numbers equal the ones of its run's evaluation."""
    config = training(steps=3, evaluation={"test_samples": 3})
    evaluate_here(run, tmp_path, run / "done.json", config)
    outputs = {name: tmp_path / f"start-{name}.jsonl" for name in ("evaluations", "episodes")}
    own = EvaluateStartConfig(**evaluation_of(config).model_dump(exclude={"arm", "seed"}))

    def start_from(folder: Path) -> None:
        tasks, runtime = world() / "test.jsonl", Runtime(code=CODE)
        evaluate_start(test_tasks=tasks, start=(folder,), **outputs, config=own, runtime=runtime)

    start_from(run / "best")
    rows = storage.read_rows(tmp_path / "evaluations.jsonl", EvaluationRow)
    best = [row.values for row in rows if row.checkpoint == "best"]
    assert [row.values for row in storage.read_rows(outputs["evaluations"], EvaluationRow)] == best
    for name, change in (
        ("unexpected", {"model.own.weight": torch.ones(2)}),
        ("mismatched", {"model.norm.weight": torch.ones(3)}),
    ):
        shutil.copytree(run / "best", tmp_path / name)
        file = tmp_path / name / "model.safetensors"
        save_file(load_file(file) | change, file, {"format": "pt"})
        with pytest.raises(CheckpointError, match=f"{name}_keys: .*{next(iter(change))}"):
            start_from(tmp_path / name)
