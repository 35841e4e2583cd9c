"""Interrupted from outside (jobs, nodes, main process, configuration) a run ends in the bytes of an undisturbed one."""

from __future__ import annotations

import re
import shutil
import subprocess
from datetime import datetime
from pathlib import Path

import pytest

from lever_pipe.lvlms.asking.ledger import Ledger
from tests.workflow.conftest import Project
from tests.workflow.counts import OFFLINE_RATE_AND_BELOW

from .conftest import ENDED, Cluster, ClusterProject, Problem, on, wait_until
from .test_failures import STAGE, epoch, whole

pytestmark = pytest.mark.slurm

FIRST, SECOND = epoch("0", 1), epoch("0", 2)
TARGET = ("--", f"results/smoke/{SECOND}/run.json")


def hold(project: ClusterProject) -> Problem:
    """Hold the first epoch while it writes: its weights exist, and it is not complete."""
    return project.lay("held", "hold", STAGE, f"manifest=results/smoke/{FIRST}/run.json", at="metrics.json")


def require_recovered(project: ClusterProject, finished: Project) -> None:
    """Require both epochs with the bytes of the uninterrupted run, and no remains."""
    project.same(finished, *whole(FIRST), *whole(SECOND))
    for folder in (FIRST, SECOND):
        # A job that ends after the main process leaves an empty log: Snakemake creates a missing one again.
        mine, theirs = (
            {path.name for path in (p.folder / "results/smoke" / folder).iterdir()} - {"log.txt"}
            for p in (project, finished)
        )
        assert mine == theirs  # no temporary file, no lock


def second_name(project: ClusterProject) -> Path:
    """Return a second name of the first epoch's weights; the same file as long as they are not made again."""
    name = project.folder / "second_name"
    name.hardlink_to(project.results(f"{FIRST}/selector.safetensors"))
    return name


def is_same(project: ClusterProject, weights: Path) -> bool:
    return project.results(f"{FIRST}/selector.safetensors").samefile(weights)


def moment(cluster: Cluster, job: str, which: str) -> datetime:
    """Return when a job started or ended."""
    found = re.search(rf"{which}=(\S+)", cluster.ask("scontrol", "show", "job", job))
    assert found
    return datetime.fromisoformat(found[1])


def state_of(cluster: Cluster, job: str) -> str:
    return next(known.state for known in cluster.jobs() if known.id == job)


def test_a_cancelled_job_is_run_again(project: ClusterProject, finished: Project) -> None:
    project.forget(FIRST, SECOND)
    held = hold(project)
    run = project.start(*TARGET)
    wait_until(held.struck(), 120, "the job", run)
    project.cluster.ask("scancel", held.strikes[0])
    run.succeed()
    assert state_of(project.cluster, held.strikes[0]) == "CANCELLED"
    require_recovered(project, finished)


def test_a_job_of_a_dead_node_is_run_again(project: ClusterProject, finished: Project) -> None:
    project.forget(FIRST, SECOND)
    held = hold(project)
    run = project.start(*TARGET)
    wait_until(held.struck(), 120, "the job", run)
    node = next(job.node for job in project.cluster.jobs() if job.id == held.strikes[0])
    project.cluster.script("kill-node", node)
    try:
        run.succeed()
        assert state_of(project.cluster, held.strikes[0]) == "NODE_FAIL"
    finally:
        project.cluster.script("start-node", node)
    wait_until(lambda: f"{node} idle" in project.cluster.ask("sinfo", "-hNo", "%N %T"), 30, "the node")
    require_recovered(project, finished)


def test_a_job_that_outlives_its_node_daemon_writes_alone(project: ClusterProject, finished: Project) -> None:
    """SLURM gives the node up and Snakemake submits the job again, while the first one continues to write.

    Snakemake removes the outputs of a failed job, so the second may have to write them again.
    """
    project.forget(FIRST, SECOND)
    held = hold(project)
    run = project.start(*TARGET)
    wait_until(held.struck(), 120, "the job", run)
    first = held.strikes[0]
    node = next(job.node for job in project.cluster.jobs() if job.id == first)
    project.cluster.script("stop", f"slurmd-{node}")
    try:
        wait_until(lambda: state_of(project.cluster, first) == "NODE_FAIL", 60, "the node to be given up", run)
        logs = project.folder / ".snakemake/slurm_logs"
        owner = f"SLURM job {first},"
        wait_until(lambda: any(owner in log.read_text() for log in logs.rglob("*.log")), 120, "the second to wait", run)
        held.release()
        run.succeed()
    finally:
        project.cluster.script("start-node", node)
    wait_until(lambda: f"{node} idle" in project.cluster.ask("sinfo", "-hNo", "%N %T"), 30, "the node")
    require_recovered(project, finished)


@pytest.mark.parametrize("end", ["COMPLETED", "CANCELLED"])
def test_a_killed_main_process_loses_nothing(project: ClusterProject, finished: Project, end: str) -> None:
    project.forget(FIRST, SECOND)
    held = hold(project)
    first = project.start(*TARGET)
    wait_until(held.struck(), 120, "the job", first)
    first.kill()
    orphan, weights = held.strikes[0], second_name(project)
    assert state_of(project.cluster, orphan) == "RUNNING"
    project.snakemake("--unlock")
    assert f"scancel {orphan}" in project.start(*TARGET).fail()
    if end == "COMPLETED":
        held.release()
    else:
        project.cluster.ask("scancel", orphan)
    wait_until(lambda: state_of(project.cluster, orphan) == end, 60, "the orphan to end")
    project.start(*TARGET).succeed()
    assert is_same(project, weights) == (end == "COMPLETED")  # the orphan's finished files are not written again
    ended = moment(project.cluster, orphan, "EndTime")
    for job in project.cluster.jobs(STAGE):
        if int(job.id) > int(orphan):
            assert moment(project.cluster, job.id, "StartTime") >= ended  # never two writers at a time
    require_recovered(project, finished)


def test_a_duplicate_leaves_the_artefact_to_its_owner(project: ClusterProject, finished: Project) -> None:
    """The same job twice at once, as after a main process that could not see its first one."""
    project.forget(FIRST, SECOND)
    held = hold(project)
    run = project.start(*TARGET)
    wait_until(held.struck(), 120, "the job", run)
    weights = second_name(project)
    job, process = (project.problems / "held.struck").read_text().split()
    variables = dict(
        word.split("=", 1) for word in Path(f"/proc/{process}/environ").read_text().split("\0") if "=" in word
    )
    snapshot = {name: value for name, value in variables.items() if name.startswith("LEVER_PIPE_")}
    script = project.cluster.ask("scontrol", "write", "batch_script", job, "-")
    log = project.folder / "duplicate.log"
    duplicate = subprocess.run(
        ["sbatch", "--parsable", "--mem=4000", "--output", log],
        input=script,
        env=project.environment | snapshot,
        cwd=project.folder,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    ).stdout.strip()
    wait_until(
        lambda: log.exists() and f"SLURM job {job}" in log.read_text(),
        120,
        "the duplicate to say whom it waits for",
        run,
    )
    assert state_of(project.cluster, duplicate) == "RUNNING"
    assert not project.results(f"{FIRST}/run.json").exists()
    held.release()
    run.succeed()
    wait_until(lambda: state_of(project.cluster, duplicate) in ENDED, 120, "the duplicate's end")
    assert state_of(project.cluster, duplicate) == "COMPLETED", log.read_text()
    assert "nothing to do" in log.read_text()
    assert is_same(project, weights)  # neither removed nor written again
    require_recovered(project, finished)


def test_an_edited_config_waits_for_the_next_run(project: ClusterProject, finished: Project) -> None:
    project.forget(FIRST, SECOND)
    cluster = project.cluster
    full = cluster.ask("sbatch", "--parsable", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 300")
    run = project.start(*TARGET)
    wait_until(lambda: cluster.jobs(STAGE, states={"PENDING"}), 120, "a job in the queue", run)
    with project.edited("config.yaml", "grpo: {learning_rate: 1.0e-4", "grpo: {learning_rate: 3.0e-4"):
        with project.edited("config/smoke.yaml", "rl_data: {", "rl_data: {{"):  # half an edit: no YAML
            cluster.ask("scancel", full.strip())
            run.succeed()
        require_recovered(project, finished)
        assert project.planned() == OFFLINE_RATE_AND_BELOW
    # Manifests contain durations, so the lineage of all runs is collected again; nothing is computed again.
    assert not project.planned().keys() & {"train_grpo_epoch", "select_demonstrations", "answer_prompts"}


def test_two_experiments_share_a_ledger(project: ClusterProject, finished: Project, tmp_path: Path) -> None:
    """One has a random baseline more; both ask for most answers at once, of an empty ledger, with a GPU each."""
    batch, shared = "lever/answers/baseline", tmp_path / "ledger"
    shared.mkdir()
    folder = tmp_path / "other"
    shutil.copytree(finished.folder, folder)
    other = on(project.cluster, Project(folder))
    smoke = other.folder / "config/smoke.yaml"
    smoke.write_text(smoke.read_text().replace("n_random_draws: 1", "n_random_draws: 2"))
    problems, runs = [], []
    for one, gpu in ((project, "gpu=1"), (other, "gres=gpu:fake:1")):
        shutil.rmtree(one.results("ledger"))
        one.results("ledger").symlink_to(shared)
        one.forget(batch)
        problems.append(one.lay("together", "hold", "answer_prompts"))
        runs.append(
            one.start("--set-resources", f"answer_prompts:{gpu}", "--", f"results/smoke/{batch}/run.json"),
        )
    for problem, run in zip(problems, runs, strict=True):
        wait_until(problem.struck(), 120, "both jobs", run)
    requests = [project.cluster.ask("scontrol", "show", "job", problem.strikes[0]) for problem in problems]
    for problem in problems:
        problem.release()
    for run in runs:
        run.succeed()
    assert "TresPerJob=gres:gpu:1" in requests[0]
    assert "TresPerNode=gres:gpu:fake:1" in requests[1]
    assert len(list(shared.glob("*.jsonl"))) == 2
    assert Ledger(shared).disagreements == 0
    answers = f"{batch}/answers.jsonl"
    mine, theirs = (set(one.results(answers).read_text().splitlines()) for one in (project, other))
    assert mine < theirs
    project.same(finished, answers)
