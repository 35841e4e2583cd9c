"""A real SLURM cluster on this machine, and copies of the project that run on it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.workflow.conftest import Project, finished_once

HERE = Path(__file__).parent
SCRIPT = HERE / "loopback.sh"
FOLDER = "LEVER_PIPE_SLURM_TESTS"
"""Folder for the clusters, set by `make test-slurm`, which stops leftovers in it; then nothing is skipped."""

SETTINGS = {
    "SLB_MEM_MB": "64000",  # claimed, not used: eight jobs at once
    "SLB_CPUS": "8",
    "SLB_OVERMEM": "1",
    "SLB_NODE_TIMEOUT": "6",
    "SLB_KILL_WAIT": "2",
    "SLB_MIN_JOB_AGE": "1800",  # the first job is still known at the end of a slow run
}
# What a test cannot wait for; all else is the profile's.
QUICK = (
    "--lever-slurm-init-seconds-before-status-checks",
    "2",
    "--max-status-checks-per-second",
    "2",
    "--latency-wait",
    "5",
)
PROFILE = ("--workflow-profile", "profiles/slurm", "--jobs", "8", *QUICK)
RESULTS = "results/smoke"
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "DEADLINE"}
FIELDS = "%i|%T|%k|%m|%l|%N"


class Job(NamedTuple):
    """A job as squeue shows it; finished ones too."""

    id: str
    state: str
    comment: str
    memory: str
    limit: str
    node: str


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest test, so that two workers end together."""
    items.sort(key=lambda item: "test_same_bytes" not in item.nodeid)


def wait_until(probe: Callable[[], Any], seconds: float, what: str, run: Run | None = None) -> Any:
    """Return the first true value of `probe`; fail with the run's state if none occurs in time."""
    end = time.monotonic() + seconds
    while True:
        found = probe()
        if found:
            return found
        ended = run is not None and run.process.poll() is not None
        if ended or time.monotonic() > end:
            why = "the run ended before" if ended else f"waited {seconds:g} s for"
            raise AssertionError(f"{why} {what}\n{run.report() if run else ''}")
        time.sleep(0.1)


@dataclass(frozen=True)
class Cluster:
    """A running cluster; `loopback.sh` documents each word."""

    folder: Path

    def script(self, command: str, *words: str) -> None:
        subprocess.run(
            [SCRIPT, command, self.folder, *words],
            env=os.environ | {"SLB_QUIET": "1"},
            check=True,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )

    @property
    def environment(self) -> dict[str, str]:
        """Return this environment with the cluster's commands first."""
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return os.environ | {"SLURM_CONF": str(self.folder / "etc/slurm.conf"), "PATH": path}

    def ask(self, *command: str) -> str:
        """Return the output of a SLURM command."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=30, check=False, cwd="/"
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def jobs(self, comment: str = "", *, states: set[str] | None = None) -> list[Job]:
        """Return the jobs whose comment contains a text, by id; in every state that the controller still lists."""
        lines = self.ask("squeue", "--noheader", "--states=all", "--format", FIELDS).splitlines()
        jobs = sorted((Job(*line.split("|")) for line in lines), key=lambda job: int(job.id))
        return [job for job in jobs if comment in job.comment and (states is None or job.state in states)]

    def last_id(self) -> int:
        """Return the id of the youngest job."""
        return max((int(job.id) for job in self.jobs()), default=0)

    def empty(self) -> None:
        """Cancel all jobs, and wait until they are gone; every node is usable then."""
        for job in self.jobs():
            if job.state not in ENDED:
                subprocess.run(["scancel", job.id], env=self.environment, timeout=30, check=False)
        wait_until(lambda: all(job.state in ENDED for job in self.jobs()), 60, "an empty queue")


@dataclass(frozen=True)
class Problem:
    """A problem injected into a project's jobs; see hooks/sitecustomize.py."""

    path: Path

    @property
    def strikes(self) -> list[str]:
        """Return the SLURM job ids that it struck, in order."""
        log = self.path.with_suffix(".struck")
        return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []

    def struck(self, times: int = 1) -> Callable[[], bool]:
        return lambda: len(self.strikes) >= times

    def release(self) -> None:
        """Let held jobs continue."""
        self.path.with_suffix(".release").touch()


@dataclass(frozen=True)
class Run:
    """Snakemake in the background."""

    process: subprocess.Popen[bytes]
    log: Path
    cluster: Cluster

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def report(self) -> str:
        """Return the queue and the end of the log."""
        try:
            queue = self.cluster.ask("squeue", "--states=all", "--format", "%i %T %M %r %k")
        except (AssertionError, subprocess.TimeoutExpired) as error:
            queue = str(error)
        controller = (self.cluster.folder / "log/slurmctld.log").read_text(errors="replace")
        return f"{queue}\n{controller[-2000:]}\n{self.text()[-8000:]}"

    def kill(self) -> None:
        """Kill the main process, and nothing else: jobs of the cluster go on."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def finish(self, seconds: float = 150) -> int:
        """Return the exit status; a run that does not end is a failure, reported with its progress."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            report = self.report()
            self.kill()
            raise AssertionError(f"did not end within {seconds:g} s\n{report}") from None

    def succeed(self, seconds: float = 150) -> str:
        """Return the output of a successful run."""
        assert self.finish(seconds) == 0, self.report()
        return self.text()

    def fail(self, seconds: float = 150) -> str:
        """Return the output of a failed run."""
        assert self.finish(seconds) != 0, self.report()
        return self.text()


@dataclass(frozen=True)
class ClusterProject(Project):
    """A copy of the project whose Snakemake submits to a cluster."""

    cluster: Cluster

    @property
    def problems(self) -> Path:
        return self.folder / "problems"

    @property
    def environment(self) -> dict[str, str]:
        """Return the cluster's environment, which imports the copy and activates its problems."""
        own = super().environment
        path = f"{own['PYTHONPATH']}:{self.problems}"
        return self.cluster.environment | {**self._only(own), "PYTHONPATH": path}

    @staticmethod
    def _only(own: dict[str, str]) -> dict[str, str]:
        return {name: value for name, value in own.items() if name not in ("PATH", "SLURM_CONF")}

    def lay(self, name: str, do: str, stage: str, *when: str, at: str = "", always: bool = False) -> Problem:
        """Inject a problem: an action of a stage, once or always, when its call contains all words."""
        path = self.problems / f"{name}.problem"
        path.write_text(json.dumps({"do": do, "stage": stage, "when": when, "at": at, "always": always}))
        return Problem(path)

    def start(self, *words: str, **variables: str) -> Run:
        """Start the smoke experiment on the cluster, by the profile."""
        log = self.folder / f"run-{time.monotonic_ns()}.log"
        with log.open("wb") as handle:
            process = subprocess.Popen(
                self.command(*PROFILE, *words),
                cwd=self.folder,
                env=self.environment | variables,
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        run = Run(process, log, self.cluster)
        STARTED.append(run)
        return run

    def results(self, name: str) -> Path:
        return self.folder / RESULTS / name

    def forget(self, *folders: str) -> None:
        """Delete these jobs' outputs in their folders, but no files of other jobs next to or below them."""
        for folder in folders:
            for path in self.results(folder).iterdir():
                if path.is_file() and not path.name.startswith("selections."):
                    path.unlink()

    def same(self, other: Project, *names: str) -> None:
        """Require the same bytes in both projects."""
        for name in names:
            mine, theirs = self.folder / RESULTS / name, other.folder / RESULTS / name
            assert mine.read_bytes() == theirs.read_bytes(), name


STARTED: list[Run] = []


@pytest.fixture(autouse=True)
def _nothing_left_running() -> Iterator[None]:
    """Kill the test's processes that are still running."""
    yield
    while STARTED:
        STARTED.pop().kill()


def start_cluster(**settings: str) -> Cluster:
    below = os.environ.get(FOLDER)
    # Short: the daemons' sockets lie below it.
    cluster = Cluster(Path(tempfile.mkdtemp(prefix="slb-", dir=below or None)))
    subprocess.run(
        [SCRIPT, "up", cluster.folder],
        env=os.environ | SETTINGS | settings,
        check=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    return cluster


def require(*programs: str) -> None:
    """Skip where SLURM is not installed, unless the caller wants these tests and nothing else."""
    missing = [name for name in programs if not shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")]
    if missing and FOLDER not in os.environ:
        pytest.skip(f"{', '.join(missing)} not installed; `make test-slurm` installs it")
    assert not missing, f"{', '.join(missing)} not installed"


@pytest.fixture(scope="session")
def cluster_of_session() -> Iterator[Cluster]:
    require("slurmctld", "slurmd", "munged", "sbatch")
    cluster = start_cluster()
    yield cluster
    cluster.script("wipe")


@pytest.fixture
def cluster(cluster_of_session: Cluster) -> Cluster:
    """Return a cluster of two nodes that is whole and empty."""
    cluster_of_session.script("up")
    cluster_of_session.empty()
    return cluster_of_session


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return a project whose smoke run is complete, made without a cluster, once for all workers."""
    return finished_once(tmp_path_factory, store=False)


def on(cluster: Cluster, project: Project) -> ClusterProject:
    """Return a copy as a project of the cluster, without problems as yet."""
    shutil.copytree(HERE / "hooks", project.folder / "problems", ignore=shutil.ignore_patterns("__pycache__"))
    return ClusterProject(project.folder, cluster)


@pytest.fixture
def project(cluster: Cluster, finished: Project, tmp_path: Path) -> ClusterProject:
    """Return a project with complete results; a test deletes the results of the jobs that it wants to run."""
    folder = tmp_path / "project"
    shutil.copytree(finished.folder, folder, symlinks=True)
    return on(cluster, Project(folder))
