from __future__ import annotations

from pathlib import Path

import pytest
from trained_world import N_TEST, evaluate_here, evaluation_of, train_here, training

from lever_pipe.base import storage
from lever_pipe.intention.records import DialogueRow, DoneRow, EpisodeRow, EvaluationRow
from lever_pipe.stages import evaluate_agent as stage


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
    told = storage.read_rows(tmp_path / "dialogues.jsonl", DialogueRow)
    assert [EpisodeRow.model_validate(row.model_dump(include=set(EpisodeRow.model_fields))) for row in told] == greedy
    assert all(len(row.turns) == len(row.rewards) for row in told)


def test_the_identity_holds_what_moves_the_numbers() -> None:
    config = evaluation_of(training(steps=3))
    assert config.temperature == 1.0
    assert (config.arm, config.seed) == ("test", 0)
