"""Jobs of an earlier controller are found, told, waited for or cancelled; nobody else's are."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm, on_path

from lever_pipe.base.errors import ConfigError
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


class Queue:
    """A queue that loses its jobs after so many looks."""

    def __init__(self, jobs: list[slurm.QueuedJob], looks: float, silent: tuple[int, ...] = ()) -> None:
        self.jobs, self.looks, self.silent, self.seen, self.slept = jobs, looks, silent, 0, 0.0

    def __call__(self) -> list[slurm.QueuedJob] | None:
        self.seen += 1
        if self.seen in self.silent:
            return None
        return self.jobs if self.seen <= self.looks else []

    def sleep(self, seconds: float) -> None:
        self.slept += seconds


def test_only_jobs_of_this_folder_and_prefix_are_orphans(fake: FakeSlurm, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    mine = [job(1, tmp_path), job(2, link)]
    others = [job(3, "/elsewhere"), job(4, tmp_path, name="other_1f"), job(5, tmp_path, name="lever_pipeline_1f")]
    fake.has(*mine, *others)
    assert orphans.find(PREFIX, tmp_path) == mine


def test_a_run_inside_a_job_neither_waits_for_it_nor_cancels_it(
    fake: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    fake.has(job(7, tmp_path))
    for chosen in orphans.CHOICES:
        assert orphans.settle(chosen, PREFIX, tmp_path).level is Level.OK
    assert not [call for call in fake.calls if call.startswith("scancel")]


def test_no_jobs_are_no_trouble_and_silence_is(fake: FakeSlurm, tmp_path: Path) -> None:
    assert orphans.settle(orphans.REPORT, PREFIX, tmp_path).level is Level.OK
    fake.fails("squeue")
    assert orphans.settle(orphans.CANCEL, PREFIX, tmp_path).level is Level.FAULT


def test_a_folder_without_logs_of_slurm_has_no_orphans(
    fake: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not orphans.may_be_left(tmp_path)
    (tmp_path / orphans.LOGS).mkdir(parents=True)
    assert orphans.may_be_left(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not orphans.may_be_left(tmp_path)
    assert fake.calls == []


def test_waiting_ends_with_the_jobs_and_tells_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks = 2 + int(orphans.TELL_EVERY / orphans.LOOK_EVERY)
    queue = Queue([job(1, tmp_path), job(2, tmp_path, state="PENDING")], looks, silent=(3,))
    monkeypatch.setattr(slurm, "queued_jobs", queue)
    with caplog.at_level(logging.WARNING):
        found = orphans.settle(orphans.WAIT, PREFIX, tmp_path, sleep=queue.sleep)
    assert (found.level, found.found) == (Level.OK, "2 waited for")
    assert queue.slept == orphans.LOOK_EVERY * (looks - 1)  # one look to find them, one without sleep before
    assert caplog.text.count("Waiting for earlier jobs: 2") == 2
    assert not [record for record in caplog.records if record.args]  # Snakemake's formatter fills none in


def test_cancelling_waits_until_they_are_gone(fake: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue([job(1, tmp_path), job(2, tmp_path)], looks=3)
    monkeypatch.setattr(slurm, "queued_jobs", queue)
    found = orphans.settle(orphans.CANCEL, PREFIX, tmp_path, sleep=queue.sleep)
    assert (found.level, found.found) == (Level.OK, "2 cancelled and gone")
    assert fake.calls == ["scancel 1 2"]
    assert queue.slept == 2 * orphans.LOOK_EVERY


def test_cancelled_jobs_that_stay_are_a_fault(fake: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue([job(1, tmp_path, state="COMPLETING")], looks=float("inf"))
    monkeypatch.setattr(slurm, "queued_jobs", queue)
    found = orphans.settle(orphans.CANCEL, PREFIX, tmp_path, sleep=queue.sleep)
    assert found.level is Level.FAULT
    assert "1  COMPLETING" in found.text
    assert queue.slept == orphans.GONE_WITHIN


def test_the_environment_chooses_unless_a_word_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(orphans.VARIABLE, raising=False)
    assert orphans.choice() == orphans.REPORT
    monkeypatch.setenv(orphans.VARIABLE, "wait")
    assert orphans.choice() == orphans.WAIT
    monkeypatch.setenv(orphans.VARIABLE, "kill")
    with pytest.raises(ConfigError, match="one of report, wait, cancel; found 'kill'"):
        orphans.choice()
