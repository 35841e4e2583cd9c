"""Two invocations at once: the second is refused, or both end with the same bytes."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from lever_pipe.lvlms.asking.ledger import Ledger
from tests.workflow.conftest import Project, begin, finished_once

pytestmark = pytest.mark.failures

TARGET = "results/smoke/lever/preset~world/rce/seed~0/epoch~2/selector.safetensors"
ANSWERS = "results/smoke/lever/rl_data/rl_data_k64_v3.jsonl"


def start(project: Project, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        project.command("--cores", "1", *words),
        cwd=project.folder,
        env=project.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(path: Path, run: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 300
    while not path.exists():
        assert run.poll() is None, run.communicate()[0][-3000:]
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def begun(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return a project with the world and its examples, of a finished run."""
    (tmp_path / "one").mkdir()
    return begin(tmp_path / "one", finished_once(tmp_path_factory, store=False))


def test_the_second_in_one_folder_is_refused_and_harms_nothing(
    begun: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first = start(begun, "--", TARGET)
    wait_for(begun.folder / "results/smoke/lever/rl_data/proposals.jsonl", first)
    second = begun.call("--configfile", "config/smoke.yaml", "--cores", "1", "--", TARGET)
    planned = begun.planned("--nolock", "--", TARGET)
    assert second.returncode != 0
    assert "no other run is at work" in second.stdout
    assert planned.keys() >= {"train_rce_epoch"}
    text = first.communicate()[0]
    assert first.returncode == 0, text[-3000:]
    finished = finished_once(tmp_path_factory, store=False)
    assert (begun.folder / TARGET).read_bytes() == (finished.folder / TARGET).read_bytes()


def test_two_folders_with_one_store_end_with_the_same_bytes(begun: Project, tmp_path: Path) -> None:
    other = Project(tmp_path / "two")
    shutil.copytree(begun.folder, other.folder)
    store = ("--config", f"store={{folder: {tmp_path}/store}}")
    runs = [start(project, *store, "--", TARGET) for project in (begun, other)]
    for run in runs:
        text = run.communicate()[0]
        assert run.returncode == 0, text[-3000:]
    for name in (TARGET, ANSWERS):
        assert (begun.folder / name).read_bytes() == (other.folder / name).read_bytes()
    begun.tool("store", "verify", f"{tmp_path}/store")
    assert Ledger(tmp_path / "store/ledger").disagreements == 0
