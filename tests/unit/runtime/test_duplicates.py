"""A second job for one artefact waits for the first, and leaves only what is whole, as planned, and of this plan."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lever_pipe.base import contents, storage
from lever_pipe.base.records import RunCard
from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.runtime import duplicates, ownership, plan, snapshot
from lever_pipe.runtime.duplicates import Duplicate
from lever_pipe.runtime.slurm import squeue

ROOT = Path(__file__).parents[3]
WORDS = (
    "--snakefile",
    "Snakefile",
    "--target-jobs",
    "train_rce_epoch:data=lever,sampled=,asked=,preset=world,seed=0,epoch=2",
    "--allowed-rules",
    "a",
)


@pytest.fixture(scope="module")
def workflow() -> Iterator[Any]:
    """Return the project's workflow as a job's own Snakemake has it when the rules are read."""
    from snakemake.api import SnakemakeApi
    from snakemake.settings.types import ConfigSettings, OutputSettings, ResourceSettings, StorageSettings

    before = Path.cwd()
    os.chdir(ROOT)
    try:
        with SnakemakeApi(OutputSettings(quiet=None)) as api:
            parsed = api.workflow(
                resource_settings=ResourceSettings(cores=1),
                config_settings=ConfigSettings(),
                storage_settings=StorageSettings(),
                snakefile=ROOT / "Snakefile",
            )
            yield parsed._workflow
    finally:
        os.chdir(before)


def test_the_command_line_of_a_job_names_its_files(workflow: Any) -> None:
    (target,) = duplicates.jobs_of(workflow, WORDS)
    folder = Path("results/lever/preset~world/rce/seed~0")
    assert target.rule == "train_rce_epoch"
    assert target.files["card"] == folder / "epoch~2/run.json"
    assert target.files["start"] == folder / "epoch~1/selector.safetensors"
    assert target.files["selector"] == folder / "epoch~2/selector.safetensors"


def test_lists_of_files_stay_lists_and_rules_without_card_are_none(workflow: Any) -> None:
    (target,) = duplicates.jobs_of(workflow, ("--target-jobs", "merge_rl_data:data=lever,sampled=,asked=", "all:"))
    assert target.files["trajectories"] == tuple(
        Path(f"results/lever/rl_data/shard~{shard}/trajectories.jsonl") for shard in range(2)
    )
    assert duplicates.jobs_of(workflow, ("--cores", "1")) == []


class TestMade:
    """A merge_rl_data of which every file lies in a temporary folder."""

    @pytest.fixture
    def experiment(self) -> Experiment:
        return parse_experiment({})

    @pytest.fixture
    def target(self, tmp_path: Path, experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> Duplicate:
        shards = (tmp_path / "0.jsonl", tmp_path / "1.jsonl")
        files: dict[str, Path | tuple[Path, ...]] = {"trajectories": shards}
        files |= {name: tmp_path / name for name in ("train_pools", "train_examples", "rl_data", "summary", "card")}
        for path in (*shards, *(path for path in files.values() if isinstance(path, Path))):
            path.write_text(path.name)
        spec = json.loads(plan.spec_of(experiment, "merge_rl_data", {}))
        inputs = {f"trajectories[{i}]": contents.digest(path) for i, path in enumerate(shards)}
        inputs |= {name: contents.digest(tmp_path / name) for name in ("train_pools", "train_examples")}
        row = RunCard(
            stage="merge_rl_data",
            config=spec["config"],
            inputs=inputs,
            code=spec["code"],
            commit="",
            dirty=False,
            versions={},
            device="cpu",
            threads=1,
            seconds=1.0,
            outputs={name: contents.digest(tmp_path / name) for name in ("rl_data", "summary")},
        )
        storage.write_row(tmp_path / "card", row)
        frozen = tmp_path / "snapshot.json"
        frozen.touch()
        card_time = (tmp_path / "card").stat().st_mtime
        os.utime(frozen, (card_time - 60, card_time - 60))
        monkeypatch.setenv(snapshot.VARIABLE, str(frozen))
        return Duplicate("merge_rl_data", {}, tmp_path / "card", files)

    def test_what_is_whole_and_of_this_plan_is_made(self, target: Duplicate, experiment: Experiment) -> None:
        assert duplicates.is_made(target, experiment)

    @pytest.mark.parametrize("name", ["rl_data", "summary", "card"])
    def test_a_missing_output_is_made_again(self, target: Duplicate, experiment: Experiment, name: str) -> None:
        path = target.files[name]
        assert isinstance(path, Path)
        path.unlink()
        assert not duplicates.is_made(target, experiment)

    def test_what_is_older_than_the_plan_is_made_again(self, target: Duplicate, experiment: Experiment) -> None:
        """A user who forces a rule wants it to run."""
        Path(os.environ[snapshot.VARIABLE]).touch()
        os.utime(os.environ[snapshot.VARIABLE], (2**32, 2**32))
        assert not duplicates.is_made(target, experiment)

    def test_without_snapshot_nothing_is_made(
        self, target: Duplicate, experiment: Experiment, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv(snapshot.VARIABLE)
        assert not duplicates.is_made(target, experiment)


class TestWaiting:
    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Return which jobs SLURM is asked for; each runs for three questions."""
        jobs: list[str] = []

        def state(job: str) -> str:
            jobs.append(job)
            return "RUNNING" if len(jobs) <= 3 else "COMPLETED"

        monkeypatch.setattr(squeue, "state_of", state)
        monkeypatch.setenv("SLURM_JOB_ID", "2")
        return jobs

    def wait(self, tmp_path: Path, job: str) -> list[float]:
        """Return how long a second job slept beside a first one whose process is gone."""
        card = tmp_path / "run.json"
        lock = ownership.lock_of(card)
        lock.write_text(ownership.this_process().model_copy(update={"job": job}).model_dump_json())
        slept: list[float] = []
        duplicates.wait_for_first(card, sleep=slept.append)
        assert lock.exists() == (job == "2")  # its own job's lock is the stage's affair
        return slept

    def test_it_waits_until_the_owners_job_has_ended(self, tmp_path: Path, asked: list[str]) -> None:
        """Not only for the lock: the owner's Snakemake still looks at the files when the stage is done."""
        assert self.wait(tmp_path, "1") == [duplicates.SECONDS_BETWEEN_LOOKS] * 3
        assert set(asked) == {"1"}

    @pytest.mark.parametrize("job", ["2", ""])
    def test_it_asks_slurm_neither_for_itself_nor_for_a_process_outside(
        self, tmp_path: Path, asked: list[str], job: str
    ) -> None:
        assert self.wait(tmp_path, job) == []
        assert asked == []

    def test_it_waits_for_a_live_owner_whatever_slurm_says(
        self, tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A node that SLURM has given up may go on computing."""
        card, released = tmp_path / "run.json", threading.Event()

        def own() -> None:
            with ownership.owned(card):
                released.wait(20)

        first = threading.Thread(target=own)
        first.start()
        while ownership.owner_of(card) is None:
            time.sleep(0.01)
        monkeypatch.setenv("SLURM_JOB_ID", "3")
        instantly = {"sleep": lambda _: None}
        second = threading.Thread(target=duplicates.wait_for_first, args=(card,), kwargs=instantly)
        second.start()
        second.join(0.3)
        assert second.is_alive()
        released.set()
        second.join(20)
        assert not second.is_alive()
        first.join()

    def test_without_owner_there_is_nothing_to_wait_for(self, tmp_path: Path, asked: list[str]) -> None:
        duplicates.wait_for_first(tmp_path / "run.json")
        assert asked == []


def test_the_main_process_never_leaves(workflow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "is_made", lambda *_: True)
    monkeypatch.setattr("sys.argv", ["snakemake", *WORDS])
    assert workflow.is_main_process
    duplicates.leave_if_made(workflow, parse_experiment({}))
    with pytest.raises(SystemExit) as left:
        duplicates.leave_if_made(_AsJob(workflow), parse_experiment({}))
    assert left.value.code == 0


class _AsJob:
    is_main_process = False

    def __init__(self, workflow: Any) -> None:
        self.get_rule = workflow.get_rule
