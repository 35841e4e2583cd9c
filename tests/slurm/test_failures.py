"""Jobs that fail or are killed by SLURM: the next attempt requests more, other jobs continue, a table lists them."""

from __future__ import annotations

import pytest
import yaml

from tests.workflow.conftest import Project

from .conftest import ClusterProject, Job, wait_until

pytestmark = pytest.mark.slurm

STAGE = "train_grpo_epoch"
UNITS = {"K": 1 / 1024, "M": 1, "G": 1024}


def epoch(beta: str, number: int) -> str:
    """Return the folder of a GRPO epoch of the smoke experiment."""
    return f"lever/preset~world/grpo/base~2/beta~{beta}/seed~0/epoch~{number}"


def whole(folder: str) -> list[str]:
    return [f"{folder}/{name}" for name in ("selector.safetensors", "optimiser.safetensors", "metrics.json")]


def megabytes(job: Job) -> float:
    return float(job.memory[:-1]) * UNITS[job.memory[-1]]


def minutes(job: Job) -> float:
    """Return a limit that squeue shows as [days-][hours:]minutes:seconds."""
    days, _, rest = job.limit.rpartition("-")
    seconds = 0
    for part in rest.split(":"):
        seconds = 60 * seconds + int(part)
    return int(days or 0) * 24 * 60 + seconds / 60


def test_a_failing_job_is_retried_and_reported_while_the_rest_goes_on(
    project: ClusterProject, finished: Project
) -> None:
    project.forget(epoch("0", 1), epoch("0", 2), epoch("0.15", 1))
    problem = project.lay("fails", "fail", STAGE, f"manifest=results/smoke/{epoch('0', 2)}/run.json", always=True)
    text = project.start(
        *("--", f"results/smoke/{epoch('0', 2)}/run.json", f"results/smoke/{epoch('0.15', 1)}/run.json")
    ).fail()
    retries = yaml.safe_load((project.folder / "profiles/slurm/config.yaml").read_text())["retries"]
    assert len(set(problem.strikes)) == 1 + retries
    table = text[text.rindex("failed:") :]
    for part in (
        f"{STAGE}  preset=world, base=2, beta=0, seed=0, epoch=2",
        "FaultError: this job was told to fail",
        f"results/smoke/{epoch('0', 2)}/log.txt",
        f"SLURM job {problem.strikes[-1]}",
    ):
        assert part in table, table
    assert f"{STAGE}  preset=world, base=2, beta=0.15" not in table
    project.same(finished, *whole(epoch("0", 1)), *whole(epoch("0.15", 1)))
    assert not project.results(f"{epoch('0', 2)}/run.json").exists()


def test_jobs_that_slurm_kills_ask_for_more(project: ClusterProject, finished: Project) -> None:
    """Too much memory, too long: SLURM kills each, and the first attempt's kind of death identifies it."""
    greedy, slow = epoch("0", 1), epoch("0.15", 1)
    project.forget(greedy, slow)
    before = project.cluster.last_id()
    more = project.lay("greedy", "allocate", STAGE, f"manifest=results/smoke/{greedy}/run.json")
    longer = project.lay("slow", "hold", STAGE, f"manifest=results/smoke/{slow}/run.json")
    run = project.start("--", f"results/smoke/{greedy}/run.json", f"results/smoke/{slow}/run.json")
    wait_until(lambda: more.strikes and longer.strikes, 120, "both jobs", run)
    limits = {job.id: minutes(job) for job in project.cluster.jobs(STAGE)}  # what follows shortens the slow job's
    project.cluster.ask("scontrol", "update", f"jobid={longer.strikes[0]}", "EndTime=now")
    run.succeed()
    jobs = [job for job in project.cluster.jobs(STAGE) if int(job.id) > before]
    assert len(jobs) == 4
    for problem, states in ((more, {"FAILED", "OUT_OF_MEMORY"}), (longer, {"TIMEOUT"})):
        first = next(job for job in jobs if job.id == problem.strikes[0])
        second = next(job for job in jobs if job.comment == first.comment and job.id != first.id)
        assert first.state in states
        assert second.state == "COMPLETED"
        assert megabytes(second) == 2 * megabytes(first)
        assert minutes(second) == 2 * limits[first.id]
    project.same(finished, *whole(greedy), *whole(slow))
