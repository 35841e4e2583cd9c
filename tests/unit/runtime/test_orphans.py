"""Jobs of an earlier controller are found and reported; other users' jobs are ignored."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_slurm import FakeSlurm, on_path

from lever_pipe.runtime.checks import orphans
from lever_pipe.runtime.checks.findings import Level
from lever_pipe.runtime.slurm import squeue as slurm

PREFIX = "lever_pipe"
COMMENT = "rule_train_rce_epoch_wildcards_world_0_1"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return on_path(tmp_path, monkeypatch)


def job(number: int, folder: Path | str, *, name: str = f"{PREFIX}_1f", state: str = "RUNNING") -> slurm.QueuedJob:
    return slurm.QueuedJob(str(number), state, name, COMMENT, str(folder))


def test_only_jobs_of_this_folder_and_prefix_are_orphans(fake: FakeSlurm, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    mine = [job(1, tmp_path), job(2, link)]
    others = [job(3, "/elsewhere"), job(4, tmp_path, name="other_1f"), job(5, tmp_path, name="lever_pipeline_1f")]
    fake.has(*mine, *others)
    assert orphans.find(PREFIX, tmp_path) == mine


def test_jobs_and_silence_are_problems_and_an_empty_queue_is_none(fake: FakeSlurm, tmp_path: Path) -> None:
    assert orphans.check(PREFIX, tmp_path).level is Level.OK
    fake.has(job(1, tmp_path), job(2, tmp_path, state="COMPLETING"))
    found = orphans.check(PREFIX, tmp_path)
    assert found.level is Level.PROBLEM
    assert "scancel 1 2\n" in found.text and "2  COMPLETING" in found.text
    fake.fails("squeue")
    assert orphans.check(PREFIX, tmp_path).level is Level.PROBLEM


def test_a_folder_without_logs_of_slurm_has_no_orphans(
    fake: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not orphans.may_be_left(tmp_path)
    (tmp_path / orphans.LOGS).mkdir(parents=True)
    assert orphans.may_be_left(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not orphans.may_be_left(tmp_path)
    assert fake.calls == []
