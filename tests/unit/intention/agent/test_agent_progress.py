"""A run that is killed and restarted writes the same files as an uninterrupted one."""

from __future__ import annotations

import logging
import multiprocessing
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest
from trained_world import KilledError, command, files_of, interrupted, measured, read_run, train_here, training

from lever_pipe.__main__ import main
from lever_pipe.base import atomic, contents
from lever_pipe.experiment.agent_training import Schedule, Stop
from lever_pipe.intention.agent.resume import (
    POLICY,
    identity_of,
)
from lever_pipe.stages import agent_training as stage

# The best policy is the one of step 2 or 4; the last checkpoint before either interruption contains an earlier one.
CONFIG = training(steps=5, arm={"kl": 0.05}, evaluation={"every": 2})

ADAPTIVE = Schedule(kind="adaptive", target=0.01, horizon=12)
# No rise counts: the run stops at its second evaluation, at step 4 of 9.
STOP = {"stop": Stop(patience=2, least_change=100.0)}
HELD = STOP | {"kl": 0.05, "kl_schedule": ADAPTIVE, "entropy": 0.02, "entropy_schedule": ADAPTIVE}
HELD |= {"kl_form": "k1_reward", "reference_reset": 2}
STOPPING = training(steps=9, arm=HELD, evaluation={"every": 2})


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("undisturbed")
    train_here(run, CONFIG)
    return run


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that was stopped after step 2; a test takes a copy."""
    run = tmp_path_factory.mktemp("stopped")
    with pytest.MonkeyPatch.context() as patch:
        interrupted(run, CONFIG, 3, patch)
    return run


def assert_same_files(found: Path, expected: Path) -> None:
    """Compare bytes, but rows of files with times."""
    for name in ("evaluations.jsonl", "episodes.jsonl", "done.json"):
        assert (found / name).read_bytes() == (expected / name).read_bytes(), name
    for folder in ("last", "best"):
        assert contents.digest(found / folder) == contents.digest(expected / folder), folder
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


def test_a_run_that_adapts_and_stops_goes_on_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, found = tmp_path / "undisturbed", tmp_path / "killed"
    done = train_here(expected, STOPPING, checkpoint_every=100)
    assert (done.planned_steps, done.executed_steps, done.reason) == (9, 4, "stopped early")
    for step in (2, 4):
        interrupted(found, STOPPING, step, monkeypatch)
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(stage, "save_policies", lambda *_, **__: (_ for _ in ()).throw(KilledError))
        train_here(found, STOPPING, checkpoint_every=1)
    assert [path.name for path in (found / "state").iterdir()] == ["step-3"]  # the last step has none, as ever
    train_here(found, STOPPING, checkpoint_every=1)
    assert_same_files(found, expected)
    longer = training(steps=10, arm=HELD, evaluation={"every": 2})  # another run, which starts anew
    assert train_here(found, longer).executed_steps == 4
    assert measured(read_run(found).metrics) == measured(read_run(expected).metrics)


def become(words: list[str], log: Path) -> NoReturn:
    sys.stdout = sys.stderr = log.open("w", buffering=1)
    logging.getLogger().handlers.clear()
    sys.exit(main(words))


def test_a_killed_process_goes_on_bit_for_bit(tmp_path: Path, undisturbed: Path) -> None:
    words = command(tmp_path, CONFIG, checkpoint_every=1)[3:]
    process = multiprocessing.get_context("fork").Process(target=become, args=(words, tmp_path / "log"))
    process.start()
    until = time.monotonic() + 100
    while not list((tmp_path / "state").glob("step-*")) and process.is_alive() and time.monotonic() < until:
        time.sleep(0.002)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL, (tmp_path / "log").read_text()
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


def test_what_a_killed_process_left_goes_when_the_run_goes_on(
    tmp_path: Path, stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    left = tmp_path / "state" / ".here.77.01234567.tmp"
    left.mkdir()
    (left / POLICY).write_bytes(b"half")
    interrupted(tmp_path, CONFIG, 3, monkeypatch)
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["step-2"]


def killed_while_removing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a removal take the first file that it finds, and then the process die."""

    def rmtree(path: Path, **options: object) -> None:
        files = sorted(each for each in path.rglob("*") if each.is_file())
        if files:
            files[0].unlink()
            raise KilledError

    monkeypatch.setattr(shutil, "rmtree", rmtree)


def test_a_kill_while_the_state_of_a_finished_run_goes(
    tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        drop = atomic.drop
        patch.setattr(atomic, "drop", lambda state: killed_while_removing(patch) or drop(state))
        train_here(tmp_path, CONFIG, checkpoint_every=4)
    assert not (tmp_path / "state").exists()
    assert (tmp_path / "run.json").exists()
    train_here(tmp_path, CONFIG)
    assert_same_files(tmp_path, undisturbed)


def test_a_kill_while_a_former_checkpoint_goes(
    tmp_path: Path, undisturbed: Path, stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        killed_while_removing(patch)
        train_here(tmp_path, CONFIG, checkpoint_every=1)
    assert sorted(path.suffix or path.name for path in (tmp_path / "state").iterdir()) == [".tmp", "step-3"]
    train_here(tmp_path, CONFIG)
    assert_same_files(tmp_path, undisturbed)


def test_a_kill_between_the_policies_and_the_end(
    tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = stage.save_policies

    def save_policies(*arguments: object, **folders: Path) -> None:
        whole(*arguments, **folders)  # type: ignore[arg-type]
        raise KilledError

    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(stage, "save_policies", save_policies)
        train_here(tmp_path, CONFIG, checkpoint_every=2)
    assert (tmp_path / "last").is_dir()
    assert not (tmp_path / "done.json").exists()
    caplog.set_level("INFO")
    train_here(tmp_path, CONFIG)
    assert "resuming after step 4" in caplog.text
    assert_same_files(tmp_path, undisturbed)


def test_identity_is_config_files_and_code(tmp_path: Path) -> None:
    files = files_of(tmp_path)
    inputs = {"train_tasks": (files["train_tasks"],), "start": files["start"]}
    base = identity_of(CONFIG, inputs, "code")
    assert base == identity_of(CONFIG, inputs, "code")
    others = [
        identity_of(training(steps=6), inputs, "code"),
        identity_of(CONFIG, {**inputs, "train_tasks": (files["val_tasks"],)}, "code"),
        identity_of(CONFIG, inputs, "other"),
    ]
    assert len({base, *others}) == 4
