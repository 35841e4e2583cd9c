"""Jobs in one allocation never share a GPU, and never wait for one that a dead job had."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
import torch

from lever_pipe.base.errors import MachineError
from lever_pipe.runtime import gpu_slots

HOLD = """
import sys, time
from pathlib import Path
from lever_pipe.runtime import gpu_slots
gpu_slots.take(int(sys.argv[2]), folder=Path(sys.argv[1]), sleep=lambda _: time.sleep(0.02))
import os
print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _let_go(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    held: list[IO[str]] = []
    monkeypatch.setattr(gpu_slots, "_held", held)
    yield
    for lock in held:
        lock.close()


def holder(folder: Path, count: int = 1, visible: str = "0,1,2,3") -> subprocess.Popen[str]:
    """Start a job that takes GPUs and keeps them until its standard input ends."""
    command = [sys.executable, "-c", HOLD, str(folder), str(count)]
    environment = os.environ | {gpu_slots.VISIBLE: visible}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def gpus_of(job: subprocess.Popen[str]) -> set[str]:
    assert job.stdout is not None
    return set(job.stdout.readline().strip().split(","))


def end(*jobs: subprocess.Popen[str]) -> None:
    for job in jobs:
        job.communicate(timeout=20)


def test_jobs_side_by_side_have_different_gpus(tmp_path: Path) -> None:
    jobs = [holder(tmp_path, count) for count in (1, 2, 1)]
    taken = [gpus_of(job) for job in jobs]
    end(*jobs)
    assert [len(gpus) for gpus in taken] == [1, 2, 1]
    assert set.union(*taken) == {"0", "1", "2", "3"}


@pytest.mark.parametrize("way", ["ends", "is killed"])
def test_a_job_waits_until_another_is_gone(tmp_path: Path, way: str) -> None:
    first = holder(tmp_path, 2, "0,1,2")
    held = gpus_of(first)
    second = holder(tmp_path, 2, "0,1,2")
    with pytest.raises(subprocess.TimeoutExpired):
        second.wait(timeout=0.6)
    if way == "is killed":
        first.send_signal(signal.SIGKILL)
    end(first)
    assert len(gpus_of(second)) == len(held) == 2
    end(second)


def test_a_job_that_lacks_one_gpu_keeps_none_of_them(tmp_path: Path) -> None:
    """Else two jobs that want two of three GPUs each would wait for each other for ever."""
    first = holder(tmp_path, 1, "0,1")
    gpus_of(first)
    waiting = holder(tmp_path, 2, "0,1,2")  # two are free to begin with: it takes them at once
    assert len(gpus_of(waiting)) == 2
    starved = holder(tmp_path, 2, "0,1")
    with pytest.raises(subprocess.TimeoutExpired):
        starved.wait(timeout=0.4)
    end(first)
    third = holder(tmp_path, 1, "0")
    assert gpus_of(third) == {"0"}
    end(waiting, third)
    end(starved)


@pytest.mark.parametrize("visible", ["0", "", "0,-1"])
def test_too_few_gpus_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    monkeypatch.setenv(gpu_slots.VISIBLE, visible)
    with pytest.raises(MachineError, match="expected 2 GPUs"):
        gpu_slots.take(2, folder=tmp_path)


@pytest.mark.parametrize("has_cuda", [True, False])
def test_a_machine_that_lists_no_gpu_goes_on_only_where_cuda_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_cuda: bool
) -> None:
    monkeypatch.delenv(gpu_slots.VISIBLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))  # no nvidia-smi
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    if has_cuda:
        gpu_slots.take(1, folder=tmp_path / "locks")
    else:
        with pytest.raises(MachineError, match="found 0 visible"):
            gpu_slots.take(1, folder=tmp_path / "locks")
    assert gpu_slots.VISIBLE not in os.environ


def test_a_stage_on_gpus_takes_its_slots_first(monkeypatch: pytest.MonkeyPatch) -> None:
    from lever_pipe.__main__ import main

    monkeypatch.setenv(gpu_slots.VISIBLE, "")
    assert main(["stage", "merge_rl_data", "--spec", "{}", "--device", "cuda"]) == 2
    taken: list[int] = []
    monkeypatch.setattr(gpu_slots, "take", taken.append)
    for device in ("cuda", "cpu", "cuda:1"):  # without files: refused after the slots
        assert main(["stage", "merge_rl_data", "--spec", "{}", "--device", device]) == 2
    assert taken == [1]
