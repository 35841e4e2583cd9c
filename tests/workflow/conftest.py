"""One smoke run of the whole workflow in a copy of the project, shared by all tests of this folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from filelock import FileLock

from tests.sampling import CODE, ROOT, digest_of_code

from . import warm

JOB_COUNT = re.compile(r"^(\w+)\s+(\d+)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Project:
    """A copy of the project for a test to edit."""

    folder: Path
    fresh: bool = field(default=False, kw_only=True)
    """Whether its jobs start as a user's do."""

    @property
    def environment(self) -> dict[str, str]:
        """Return an environment in which jobs and workflow import the copy, not the installed package."""
        return os.environ | {"PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1"}

    def command(self, *words: str) -> list[str]:
        """Return a Snakemake call on the smoke configuration."""
        return [sys.executable, "-m", "snakemake", "--configfile", "config/smoke.yaml", *words]

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run Snakemake without the smoke configuration; stdout contains its whole output."""
        return warm.run("snakemake", list(words), self.folder, self.environment, fresh=self.fresh)

    def snakemake(self, *words: str) -> str:
        """Run Snakemake on the smoke configuration and return its output."""
        return _checked(self.call("--configfile", "config/smoke.yaml", *words))

    def tool(self, *words: str) -> str:
        """Run one tool of the package and return its output."""
        return _checked(warm.run("lever_pipe", list(words), self.folder, self.environment))

    def planned(self, *words: str) -> dict[str, int]:
        """Return how many jobs of each rule would run now."""
        text = self.snakemake("--dry-run", "--quiet", "host", *words)
        table = text[text.find("Job stats:") :] if "Job stats:" in text else ""
        table = table.split("\n\n")[0]
        return {rule: int(n) for rule, n in JOB_COUNT.findall(table) if rule not in ("total", "all")}

    @contextmanager
    def edited(self, name: str, old: str, new: str) -> Iterator[None]:
        """Replace a text in a file for the time of the block; times are restored too."""
        path = self.folder / name
        text, stat = path.read_text(), path.stat()
        assert old in text, f"{name} does not contain {old!r}"
        path.write_text(text.replace(old, new))
        try:
            yield
        finally:
            path.write_text(text)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _checked(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode:
        raise AssertionError(done.stdout[-6000:])
    return done.stdout


def copy_project(folder: Path, *, store: bool = True) -> Project:
    """Copy what runs into a folder; without store, the smoke configuration keeps nothing beyond its results."""
    for part in CODE:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, folder / part)  # includes bytecode; it stays valid because times are copied
        else:
            shutil.copy2(source, folder / part)
    if not store:
        with (folder / "config/smoke.yaml").open("a") as config:
            config.write("store: null\n")
    return Project(folder)


def begin(folder: Path, finished: Project) -> Project:
    """Return a project without store that has the world, its examples and pools, of a finished run."""
    project = copy_project(folder, store=False)
    for name in ("world", "lever/examples", "lever/embeddings", "lever/pools"):
        shutil.copytree(finished.folder / "results/smoke" / name, project.folder / "results/smoke" / name)
    return project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return a project without any results."""
    return copy_project(tmp_path)


@pytest.fixture(scope="session")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return this worker's one project in which nothing runs: tests plan in it, and take back what they change."""
    return copy_project(tmp_path_factory.mktemp("untouched"))


def session_folder(factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all workers of this session share."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session", autouse=True)
def _read_code_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    warm.codes = session_folder(tmp_path_factory) / "codes.json"


def finished_once(factory: pytest.TempPathFactory, *, store: bool) -> Project:
    """Return a project whose smoke run is complete; tests must not change it.

    It is made once for all workers of this session, or, in a folder that `LEVER_PIPE_FINISHED` names, once for all
    sessions of the same files.
    """
    shared = os.environ.get("LEVER_PIPE_FINISHED")
    parent = Path(shared) / digest_of_code() if shared else session_folder(factory)
    folder = parent / ("with_store" if store else "without_store")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if not folder.with_suffix(".done").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            replace(copy_project(folder, store=store), fresh=True).snakemake("--cores", "2")
            folder.with_suffix(".done").touch()
    return Project(folder)


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return this worker's own project whose smoke run is complete."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copytree(finished_once(tmp_path_factory, store=True).folder, folder, dirs_exist_ok=True)
    return Project(folder)
