"""With accounting on, the account counts: an unknown one is refused, a known one is charged."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workflow.conftest import Project

from .conftest import Cluster, on, require, start_cluster, wait_until
from .test_interruptions import FIRST, SECOND, TARGET, hold, require_recovered

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def accounting() -> Iterator[Cluster]:
    require("slurmctld", "slurmd", "munged", "sbatch", "slurmdbd", "mariadbd")
    cluster = start_cluster(SLB_ACCOUNTING="1")
    yield cluster
    cluster.script("wipe")


def test_the_account_is_checked_and_charged(accounting: Cluster, finished: Project, tmp_path: Path) -> None:
    shutil.copytree(finished.folder, tmp_path / "project")
    project = on(accounting, Project(tmp_path / "project"))
    project.forget(FIRST, SECOND)
    text = project.start("--default-resources", "slurm_account=nobody", "gpu_request=gpu", *TARGET).fail()
    assert "nobody" in text
    assert accounting.jobs() == []
    held = hold(project)
    run = project.start("--default-resources", "slurm_account=test", "gpu_request=gpu", *TARGET)
    wait_until(held.struck(), 120, "the job", run)
    accounting.ask("scancel", held.strikes[0])
    run.succeed()
    require_recovered(project, finished)
    records = accounting.ask("sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,Account,State")
    states = {
        job: state for job, account, state in (line.split("|") for line in records.splitlines()) if account == "test"
    }
    assert states.pop(held.strikes[0]).startswith("CANCELLED")
    assert list(states.values()) == ["COMPLETED", "COMPLETED"]
