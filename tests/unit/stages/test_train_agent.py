from __future__ import annotations

from pathlib import Path

import pytest
from trained_world import CODE, train_here, training

from lever_pipe.base import storage
from lever_pipe.base.errors import CheckpointError
from lever_pipe.base.records import Manifest
from lever_pipe.intention.agent.policy import load_policy
from lever_pipe.intention.codecs import word


def test_a_run_leaves_rows_two_policies_and_a_manifest(tmp_path: Path) -> None:
    done = train_here(tmp_path, training(steps=1))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "best",
        "done.json",
        "episodes.jsonl",
        "evaluations.jsonl",
        "last",
        "metrics.jsonl",
        "run.json",
    ]
    assert (done.arm, done.seed, done.engine, done.executed_steps) == ("test", 0, "native", 1)
    manifest = storage.read_row(tmp_path / "run.json", Manifest)
    assert (manifest.stage, manifest.code) == ("train_agent", CODE)
    assert set(manifest.inputs) == {"train_tasks", "val_tasks"}  # the content of a model folder is part of the config
    for name in ("last", "best"):
        policy = load_policy(tmp_path / name, "float32")
        assert sum(parameter.numel() for parameter in policy.parameters()) == done.n_parameters
        assert word.load(tmp_path / name).vocabulary_size == 63


def test_episodes_longer_than_the_model_reads_are_refused(tmp_path: Path) -> None:
    config = training(steps=1)
    model = config.policy.model.model_copy(update={"max_context": 513})
    longer = config.model_copy(update={"policy": config.policy.model_copy(update={"model": model})})
    expected = (
        r"max_context=513 tokens; found max_position_embeddings=512 in its config\.json\. Lower max_context to 512"
    )
    with pytest.raises(CheckpointError, match=expected):
        train_here(tmp_path, longer)
