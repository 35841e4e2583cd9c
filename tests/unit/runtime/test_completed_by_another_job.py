"""A second job for one artifact waits for the first. It accepts only complete artifacts of the same plan."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake.iocontainers import InputFiles, OutputFiles

from lever_pipe.base import contents, storage
from lever_pipe.base.records import Manifest
from lever_pipe.experiment.studies import parse_experiment
from lever_pipe.runtime import ownership, plan, snapshot
from lever_pipe.runtime.reruns import skip
from lever_pipe.runtime.slurm import squeue

SHARDS, INPUTS, OUTPUTS = ("0.jsonl", "1.jsonl"), ("train_pools", "train_examples"), ("rl_data", "summary")


def job_of(manifest: Path) -> Any:
    """Return a merge_rl_data with every file next to its manifest."""
    folder = manifest.parent
    inputs = {"trajectories": [str(folder / name) for name in SHARDS]} | {n: str(folder / n) for n in INPUTS}
    outputs = {name: str(folder / name) for name in OUTPUTS} | {"manifest": str(manifest)}
    return SimpleNamespace(
        is_group=lambda: False,
        rule=SimpleNamespace(name="merge_rl_data"),
        input=InputFiles(fromdict=inputs),
        output=OutputFiles(fromdict=outputs),
        params=SimpleNamespace(spec=plan.spec_of(parse_experiment({}), "merge_rl_data", {})),
    )


class TestCompleted:
    @pytest.fixture
    def manifest(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        for name in (*SHARDS, *INPUTS, *OUTPUTS):
            (tmp_path / name).write_text(name)
        manifest = tmp_path / "run.json"
        spec = json.loads(job_of(manifest).params.spec)
        inputs = {f"trajectories[{i}]": contents.digest(tmp_path / name) for i, name in enumerate(SHARDS)}
        row = Manifest(
            stage="merge_rl_data",
            config=spec["config"],
            inputs=inputs | {name: contents.digest(tmp_path / name) for name in INPUTS},
            code=spec["code"],
            commit="",
            dirty=False,
            versions={},
            device="cpu",
            threads=1,
            seconds=1.0,
            outputs={name: contents.digest(tmp_path / name) for name in OUTPUTS},
        )
        storage.write_row(manifest, row)
        frozen = tmp_path / "snapshot.json"
        frozen.touch()
        os.utime(frozen, (manifest.stat().st_mtime - 60,) * 2)
        monkeypatch.setenv(snapshot.VARIABLE, str(frozen))
        return manifest

    def test_what_is_whole_and_of_this_plan_is_made(self, manifest: Path) -> None:
        assert skip.completed_by_another_job(job_of(manifest))

    def test_what_is_older_than_the_plan_is_made_again(self, manifest: Path) -> None:
        """A user who forces a rule wants it to run."""
        os.utime(os.environ[snapshot.VARIABLE], (2**32, 2**32))
        assert not skip.completed_by_another_job(job_of(manifest))

    def test_without_snapshot_nothing_is_made(self, manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(snapshot.VARIABLE)
        assert not skip.completed_by_another_job(job_of(manifest))


class TestWaiting:
    @pytest.fixture
    def queried(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Return the jobs queried in SLURM; each runs for three queries."""
        jobs: list[str] = []

        def state(job: str) -> str:
            jobs.append(job)
            return "RUNNING" if len(jobs) <= 3 else "COMPLETED"

        monkeypatch.setattr(squeue, "state_of", state)
        monkeypatch.setenv("SLURM_JOB_ID", "2")
        return jobs

    def wait(self, tmp_path: Path, job: str) -> list[float]:
        """Return the time that a second job sleeps if the process of the first is gone."""
        manifest = tmp_path / "run.json"
        lock = ownership.lock_of(manifest)
        lock.write_text(ownership.this_process().model_copy(update={"job": job}).model_dump_json())
        slept: list[float] = []
        skip.completed_by_another_job(job_of(manifest), sleep=slept.append)
        assert lock.exists() == (job == "2")  # its own job's lock is the stage's affair
        return slept

    def test_it_waits_until_the_owners_job_has_ended(self, tmp_path: Path, queried: list[str]) -> None:
        """Not only for the lock: the owner's Snakemake still looks at the files when the stage is done."""
        assert self.wait(tmp_path, "1") == [skip.SECONDS_BETWEEN_POLLS] * 3
        assert set(queried) == {"1"}

    @pytest.mark.parametrize("job", ["2", ""])
    def test_it_asks_slurm_neither_for_itself_nor_for_a_process_outside(
        self, tmp_path: Path, queried: list[str], job: str
    ) -> None:
        assert self.wait(tmp_path, job) == []
        assert queried == []

    def test_it_waits_for_a_live_owner_whatever_slurm_says(
        self, tmp_path: Path, queried: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A node that SLURM has given up may go on computing."""
        manifest, released = tmp_path / "run.json", threading.Event()

        def own() -> None:
            with ownership.owned(manifest):
                released.wait(20)

        first = threading.Thread(target=own)
        first.start()
        while ownership.owner_of(manifest) is None:
            time.sleep(0.01)
        monkeypatch.setenv("SLURM_JOB_ID", "3")
        instantly = {"sleep": lambda _: None}
        second = threading.Thread(target=skip.completed_by_another_job, args=(job_of(manifest),), kwargs=instantly)
        second.start()
        second.join(0.3)
        assert second.is_alive()
        released.set()
        second.join(20)
        assert not second.is_alive()
        first.join()

    def test_without_owner_there_is_nothing_to_wait_for(self, tmp_path: Path, queried: list[str]) -> None:
        skip.completed_by_another_job(job_of(tmp_path / "run.json"))
        assert queried == []
