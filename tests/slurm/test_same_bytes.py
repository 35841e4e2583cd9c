"""The smoke experiment on the cluster ends with the bytes of the run without one."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.same_bytes import differences
from tests.workflow.conftest import Project, copy_project

from .conftest import RESULTS, Cluster, on, require, start_cluster

pytestmark = pytest.mark.slurm


def ledger_of(project: Project) -> Counter[str]:
    """Return the distinct rows of a ledger."""
    files = (project.folder / RESULTS / "ledger").glob("*.jsonl")
    return Counter({line for path in files for line in path.read_text().splitlines()})


@pytest.fixture
def patient() -> Iterator[Cluster]:
    """Return a cluster that gives up no node of a machine that is merely busy."""
    require("slurmctld", "slurmd", "munged", "sbatch")
    cluster = start_cluster(SLB_NODE_TIMEOUT="120")
    yield cluster
    cluster.script("wipe")


def test_the_cluster_changes_no_byte(
    patient: Cluster, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    project = on(patient, copy_project(tmp_path, store=False))
    run = project.start()
    finished: Project = request.getfixturevalue("finished")  # made meanwhile
    run.succeed(900)
    assert differences(project.folder / RESULTS, finished.folder / RESULTS) == []
    assert ledger_of(project) == ledger_of(finished)
    assert project.planned() == {}
    text, jobs = run.text(), patient.jobs()
    (steps,) = re.findall(r"(\d+) of \1 steps", text)
    assert Counter(job.state for job in jobs)["COMPLETED"] == int(steps) - 1  # the target is no job
    assert len(jobs) == text.count("has been submitted with SLURM jobid")
    others = [job for job in jobs if job.state != "COMPLETED"]
    if others:  # a problem of the machine; the bytes are the same all the same
        with capsys.disabled():
            sys.stderr.write(f"\nfurther attempts after {others}\n{run.report()}\n")
