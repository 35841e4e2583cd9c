"""A SLURM that does not answer, forgets a job or preempts it: no run waits for ever."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from tests.workflow.conftest import Project

from .conftest import ClusterProject, wait_until
from .test_failures import STAGE
from .test_interruptions import FIRST, SECOND, TARGET, hold, require_recovered, state_of

pytestmark = pytest.mark.slurm

OUTAGE_SECONDS = 25
REFUSALS = 10
BUSY_SBATCH = """#!/bin/sh
echo "$*" >> "{folder}/calls"
if [ "$(wc -l < "{folder}/calls")" -le {refusals} ]; then
    echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2
    exit 1
fi
exec "{sbatch}" "$@"
"""


def test_a_controller_that_refuses_ten_submissions_costs_no_attempt(
    project: ClusterProject, finished: Project, tmp_path: Path
) -> None:
    project.forget(FIRST, SECOND)
    folder, path = tmp_path / "busy", project.cluster.environment["PATH"]
    folder.mkdir()
    script = folder / "sbatch"
    script.write_text(BUSY_SBATCH.format(folder=folder, refusals=REFUSALS, sbatch=shutil.which("sbatch", path=path)))
    script.chmod(0o755)
    before = project.cluster.last_id()
    text = project.start(*TARGET, PATH=f"{folder}:{path}").succeed()
    assert len((folder / "calls").read_text().splitlines()) == REFUSALS + 2
    jobs = [job for job in project.cluster.jobs(STAGE) if int(job.id) > before]
    assert [job.memory for job in jobs] == ["4300M", "4300M"], "the memory of first attempts"
    assert "Error in rule" not in text
    require_recovered(project, finished)


def test_a_controller_that_does_not_answer_is_waited_for(project: ClusterProject, finished: Project) -> None:
    """The job ends during the outage, and its dependents are submitted after it."""
    project.forget(FIRST, SECOND)
    held = hold(project)
    run = project.start(*TARGET)
    wait_until(held.struck(), 120, "the job", run)
    project.cluster.script("stop", "slurmctld")
    held.release()
    time.sleep(OUTAGE_SECONDS)
    assert run.process.poll() is None, run.report()
    project.cluster.script("up")
    run.succeed()
    assert len(held.strikes) == 1
    require_recovered(project, finished)


def test_a_job_that_slurm_forgot_is_named_and_run_again(project: ClusterProject, finished: Project) -> None:
    project.forget(FIRST, SECOND)
    held = hold(project)
    run = project.start(*TARGET)
    wait_until(held.struck(), 120, "the job", run)
    project.cluster.script("stop", "slurmctld")
    shutil.rmtree(project.cluster.folder / "state/ctld")
    project.cluster.script("up")
    text = run.succeed()
    assert f"'{held.strikes[0]}'" in text or f"job {held.strikes[0]}" in text, text[-4000:]
    require_recovered(project, finished)


def test_a_preempted_job_is_named_and_run_again(project: ClusterProject, finished: Project) -> None:
    project.forget(FIRST, SECOND)
    held = hold(project)
    run = project.start("--default-resources", "slurm_partition=scavkill", "gpu_request=gpu", *TARGET)
    wait_until(held.struck(), 120, "the job", run)
    job = held.strikes[0]
    urgent = ("sbatch", "--nodes=2", "--exclusive", "--time=1", "--output=/dev/null", "--wrap", "sleep 3")
    project.cluster.ask(*urgent)
    text = run.succeed()
    assert state_of(project.cluster, job) == "PREEMPTED"
    assert f"'{job}'" in text or f"job {job}" in text, text[-4000:]
    assert len(project.cluster.jobs(STAGE)) >= 3
    require_recovered(project, finished)
