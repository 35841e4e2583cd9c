"""The smoke experiment on the cluster ends with the bytes of the run without one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.same_bytes import differences
from tests.workflow.conftest import Project, copy_project

from .conftest import RESULTS, Cluster, on

pytestmark = pytest.mark.slurm


def ledger_of(project: Project) -> Counter[str]:
    """Return the distinct rows of a ledger."""
    files = (project.folder / RESULTS / "ledger").glob("*.jsonl")
    return Counter({line for path in files for line in path.read_text().splitlines()})


def test_the_cluster_changes_no_byte(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    project = on(cluster, copy_project(tmp_path, store=False))
    run = project.start()
    finished: Project = request.getfixturevalue("finished")  # made meanwhile
    run.succeed(600)
    assert differences(project.folder / RESULTS, finished.folder / RESULTS) == []
    assert ledger_of(project) == ledger_of(finished)
    jobs = [job for job in cluster.jobs() if job.state == "COMPLETED"]
    assert len(jobs) == run.said().count("has been submitted with SLURM jobid")
    assert project.planned() == {}
