"""A run that is killed and started again leaves the files of one that was not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from trained_world import command, files_of, interrupted, measured, read_run, train_here, training

from lever_pipe import storage
from lever_pipe.agent.resume import PLACE, POLICY, identity_of
from lever_pipe.errors import CheckpointError

ROOT = Path(__file__).parents[3]
# The best policy is that of step 2 or 4; the last checkpoint before either interruption holds an earlier one.
CONFIG = training(steps=5, arm={"kl": 0.05}, evaluation={"every": 2})


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("undisturbed")
    train_here(run, CONFIG)
    return run


def assert_same_files(found: Path, expected: Path) -> None:
    """Compare bytes, and rows where they hold times."""
    for name in ("evaluations.jsonl", "episodes.jsonl", "done.json"):
        assert (found / name).read_bytes() == (expected / name).read_bytes(), name
    for folder in ("last", "best"):
        assert storage.digest(found / folder) == storage.digest(expected / folder), folder
    assert measured(read_run(found).metrics) == measured(read_run(expected).metrics)
    assert not (found / "state").exists()


@pytest.mark.parametrize("step", [2, 5], ids=["before the first evaluation", "at the last step"])
def test_an_interrupted_run_goes_on_bit_for_bit(
    tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    interrupted(tmp_path, CONFIG, step, monkeypatch)
    assert [path.name for path in (tmp_path / "state").iterdir()] == [f"step-{step - 1}"]
    assert not (tmp_path / "metrics.jsonl").exists()
    train_here(tmp_path, CONFIG)
    assert_same_files(tmp_path, undisturbed)


def test_a_killed_process_goes_on_bit_for_bit(tmp_path: Path, undisturbed: Path) -> None:
    call = command(tmp_path, CONFIG, checkpoint_every=1)
    with subprocess.Popen(call, cwd=ROOT, stderr=subprocess.PIPE) as process:
        until = time.monotonic() + 100
        while not list((tmp_path / "state").glob("step-*")) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.002)
        process.kill()
        _, said = process.communicate()
    assert process.returncode == -signal.SIGKILL, said.decode()[-2000:]
    assert list((tmp_path / "state").glob("step-*"))
    assert not (tmp_path / "done.json").exists()
    train_here(tmp_path, CONFIG)
    assert_same_files(tmp_path, undisturbed)


def test_a_checkpoint_serves_no_other_run(
    tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other = training(steps=5, arm={"kl": 0.06}, evaluation={"every": 2})
    interrupted(tmp_path, other, 4, monkeypatch)
    train_here(tmp_path, CONFIG)
    assert "step-3 belongs to another configuration, data or code: training starts anew" in caplog.text
    assert_same_files(tmp_path, undisturbed)


def test_half_a_checkpoint_is_none(tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed while it writes leaves a folder of another name, beside the checkpoint before."""
    interrupted(tmp_path, CONFIG, 3, monkeypatch)
    half = tmp_path / "state" / f".step-3.{os.getpid() + 1}.tmp"
    half.mkdir()
    (half / POLICY).write_bytes(b"half")
    train_here(tmp_path, CONFIG)
    assert_same_files(tmp_path, undisturbed)


def test_a_damaged_checkpoint_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(tmp_path, CONFIG, 3, monkeypatch)
    (tmp_path / "state" / "step-2" / POLICY).write_bytes(b"half")
    with pytest.raises(CheckpointError, match=r"step-2/policy\.safetensors: expected safetensors"):
        train_here(tmp_path, CONFIG)


def test_identity_is_config_files_and_code(tmp_path: Path) -> None:
    files = files_of(tmp_path)
    inputs = {"train_tasks": files["train_tasks"], "start": files["start"]}
    base = identity_of(CONFIG, inputs, "code")
    assert base == identity_of(CONFIG, inputs, "code")
    others = [
        identity_of(training(steps=6), inputs, "code"),
        identity_of(CONFIG, {**inputs, "train_tasks": files["val_tasks"]}, "code"),
        identity_of(CONFIG, inputs, "other"),
    ]
    assert len({base, *others}) == 4


def test_the_place_of_a_checkpoint_is_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(tmp_path, CONFIG, 2, monkeypatch)
    place = json.loads((tmp_path / "state" / "step-1" / PLACE).read_text())
    assert (place["step"], place["best_step"]) == (1, 0)
