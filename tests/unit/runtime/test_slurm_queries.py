"""Each SLURM query returns an answer, or None if SLURM is silent; never a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_slurm import FORGOTTEN, MARK, UNREACHABLE, FakeSlurm, on_path

from lever_pipe.runtime.slurm import squeue as slurm

JOB = ("11", "PENDING", "lever_pipe_1f", "rule_a_wildcards_x=|y z", "/tmp/my folder")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    return on_path(tmp_path, monkeypatch)


def test_queued_jobs_keep_bars_and_blanks_and_lose_the_word_for_nothing(fake: FakeSlurm) -> None:
    fake.has(JOB, ("12", "RUNNING", "wrap", "(null)", "/tmp"))
    first, second = slurm.queued_jobs() or []
    assert first == slurm.QueuedJob(*JOB)
    assert second.comment == ""


def test_a_name_gives_the_states_of_its_jobs(fake: FakeSlurm) -> None:
    fake.answers("squeue", f"7{MARK}COMPLETED\n5{MARK}FAILED\n")
    assert slurm.states_of("lever_pipe_1f") == {"7": "COMPLETED", "5": "FAILED"}
    assert "--name=lever_pipe_1f" in fake.calls[-1]
    assert "--states=all" in fake.calls[-1]
    fake.fails("squeue")
    assert slurm.states_of("lever_pipe_1f") is None


def test_the_controller_tells_a_state_before_the_accounting_does(fake: FakeSlurm) -> None:
    fake.configure(accounting="slurmdbd")
    fake.answers("squeue", "TIMEOUT\n")
    fake.answers("sacct", "RUNNING\n")
    assert slurm.state_of("7") == "TIMEOUT"


@pytest.mark.parametrize(
    ("remembered", "state"),
    [("CANCELLED by 0\n", "CANCELLED"), ("COMPLETED\n", "COMPLETED"), ("", ""), ("RUNNING\n", ""), ("PENDING\n", "")],
)
def test_the_accounting_tells_the_end_of_a_job_that_the_controller_forgot(
    fake: FakeSlurm, remembered: str, state: str
) -> None:
    fake.fails("squeue", FORGOTTEN)
    fake.configure(accounting="slurmdbd")
    fake.answers("sacct", remembered)
    assert slurm.state_of("7") == state


def test_without_accounting_a_forgotten_job_is_unknown(fake: FakeSlurm) -> None:
    fake.fails("squeue", FORGOTTEN)
    assert slurm.state_of("7") == ""
    assert not [call for call in fake.calls if call.startswith("sacct")]


def test_a_silent_controller_or_accounting_makes_a_state_unknowable(fake: FakeSlurm) -> None:
    fake.fails("squeue", UNREACHABLE)
    assert slurm.state_of("7") is None
    fake.fails("squeue", FORGOTTEN)
    fake.configure(accounting="slurmdbd")  # and sacct fails
    assert slurm.state_of("7") is None
    fake.fails("scontrol-config")
    assert slurm.state_of("7") is None


def test_a_command_that_hangs_is_left_after_its_time(fake: FakeSlurm) -> None:
    fake.hangs("squeue")
    assert slurm.run("squeue", timeout=0.2) is None


def test_the_users_own_filters_do_not_reach_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_PARTITION", "gpu")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    answer = slurm.run("env") or ""
    assert "SQUEUE_PARTITION" not in answer
    assert "SLURM_CONF=/etc/slurm.conf" in answer
