"""The snapshot of an invocation: resolved configuration, identities of all planned jobs, and digests of the code.

A job that starts hours later, on another machine, parses the workflow again. It reads the configuration from the
snapshot, because the configuration file may have been edited. It refuses to compute anything that was not planned,
because the main process would record it under the plan's identity.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from lever_pipe.base import atomic, plugins, provenance, storage
from lever_pipe.base.errors import LeverPipeError, SnapshotError
from lever_pipe.base.provenance import PACKAGE, canonical_json
from lever_pipe.base.records import Row

VARIABLE = "LEVER_PIPE_SNAPSHOT"
"""Environment variable with the snapshot's path; SLURM passes it to the jobs with the rest of the environment."""
FOLDER = Path(".snakemake/lever_pipe")
CODES = FOLDER / "codes.json"
PLUGIN_PARENTS = ("intention", "lever", "lvlms")
"""Folders with plugins; other folders next to them, such as a virtual environment, are not searched."""
JOBS = ".jobs"
SNAPSHOT_LIFETIME_S = 90 * 24 * 3600
HANDLERS = "Start the run without --no-hooks; a Snakefile with this workflow as a module must call RUN.begin."
PLAN_AGAIN = "Let the running invocation end, then start it again: it plans what the change affects."

Plan = Mapping[str, tuple[str, str]]
"""Manifest of a planned job -> its stage and its identity, as `--spec` takes it."""


class Snapshot(Row):
    """The stored data of an invocation."""

    config: dict[str, Any]  # resolved
    package: str  # digest of the package's source files
    workflow: str  # digest of the Snakefile and its rules
    jobs: str  # digest of the planned jobs in the `.jobs` file: one line of manifest, stage and identity each


def save(config: Mapping[str, Any], plan: Plan, root: Path, *, folder: Path = FOLDER) -> Path:
    """Write the snapshot of an invocation, set `VARIABLE` for all jobs to its path, and return the absolute path.

    The name contains the content's digest, so that later invocations do not overwrite it. Queued jobs of a killed
    invocation still find their snapshot.
    """
    jobs = "".join(f"{json.dumps([manifest, *identity])}\n" for manifest, identity in sorted(plan.items()))
    code = {"package": package_digest(), "workflow": workflow_digest(root)}
    snapshot = Snapshot(config=dict(config), jobs=_digest(jobs), **code)
    values = snapshot.model_dump(mode="json")
    path = (folder / f"snapshot-{_digest(canonical_json(values))}.json").absolute()
    if not path.exists():
        # The jobs first: the existence of `path` means that both files are complete.
        atomic.write_file(path.with_suffix(JOBS), lambda file: file.write(jobs.encode()))
        storage.write_json(path, values)
    for part in (path.with_suffix(JOBS), path):
        part.touch()  # `check.is_from_this_plan` compares manifests with this time
    for old in folder.glob("snapshot-*"):
        if time.time() - old.stat().st_mtime > SNAPSHOT_LIFETIME_S:  # no queued job needs it any more
            old.unlink(missing_ok=True)
    os.environ[VARIABLE] = str(path)
    return path


def load() -> Snapshot | None:
    """Read the snapshot of this process's invocation; return None outside any invocation.

    Raises:
        SnapshotError: the file in `VARIABLE` does not exist.
    """
    name = os.environ.get(VARIABLE, "")
    if not name:
        return None
    path = Path(name)
    if not path.exists():
        raise SnapshotError(
            f"{path}: expected the snapshot of the invocation that submitted this job",
            found="no such file",
            do=f"The working directory must be on a file system that all nodes share. Outside a job: unset {VARIABLE}.",
        )
    return storage.read_row(path, Snapshot)


def load_config(root: Path) -> dict[str, Any]:
    """Return the configuration for a job's own Snakemake.

    Raises:
        SnapshotError: the job has no snapshot, or the rules were edited since.
    """
    snapshot = load()
    if snapshot is None:
        raise SnapshotError(
            f"expected {VARIABLE} in the environment of a job",
            found="none",
            do=f"The cluster must pass the submitting environment to its jobs (sbatch --export=ALL). {HANDLERS}",
        )
    if workflow_digest(root) != snapshot.workflow:
        raise SnapshotError(
            "expected the rules of the invocation that submitted this job",
            found=f"{root / 'workflow'} changed since",
            do=PLAN_AGAIN,
        )
    return snapshot.config


def planned_spec(stage: str, manifest: str) -> str:
    """Return the planned identity of the job that writes a manifest.

    Raises:
        SnapshotError: no invocation planned the job.
    """
    begin = json.dumps([manifest, stage])[:-1] + ", "  # compare text, because parsing thousands of lines is slow
    if load() is not None:
        with Path(os.environ[VARIABLE]).with_suffix(JOBS).open(encoding="utf-8") as lines:
            for line in lines:
                if line.startswith(begin):
                    return str(json.loads(line)[2])
    raise SnapshotError(
        f"{stage}: expected a job of a run, or its identity as JSON after --spec",
        found=f"no run that planned {manifest or 'a call without manifest'}",
        do=HANDLERS,
    )


def require_code(stage: str, *, planned: str, found: str) -> None:
    """Compare the fingerprint of a stage's code with the planned one.

    Raises:
        SnapshotError: the stage's code was edited after the invocation began.
    """
    if planned != found:
        raise SnapshotError(
            f"{stage}: expected code {planned}, as planned when this invocation began",
            found=f"code {found}",
            do=PLAN_AGAIN,
        )


@cache
def package_digest(root: Path = PACKAGE) -> str:
    """Return a digest of the bytes of the package's source files, and of plugins outside it."""
    own_folders = plugins.roots()[1:] if root == PACKAGE else []
    parts = {root: root.rglob("*.py")}
    parts |= {
        folder: (path for room in PLUGIN_PARENTS for path in folder.glob(f"{room}/**/*.py")) for folder in own_folders
    }
    return " ".join(_digest_of(folder, sorted(paths)) for folder, paths in parts.items())


@cache
def workflow_digest(root: Path) -> str:
    """Return a digest of the bytes of the workflow's Snakefile and rule files."""
    return _digest_of(root, [root / "workflow/Snakefile", *sorted((root / "workflow/rules").glob("*.smk"))])


class StageCode(NamedTuple):
    """Fingerprint and imported libraries of a stage's code, from `base.provenance`."""

    fingerprint: str
    libraries: tuple[str, ...]


_codes: dict[str, StageCode] = {}
"""Stage and plugins -> code as this process first read it, or recalled it; later edits do not change it."""


def code_of(stage: str, plugins: tuple[str, ...]) -> StageCode:
    """Return a stage's code; cached."""
    name = " ".join((stage, *plugins))
    if name not in _codes:
        _codes[name] = StageCode(provenance.code_of(stage, plugins), provenance.libraries_of(stage, plugins))
    return _codes[name]


def recall_codes(memory: Path = CODES) -> None:
    """Fill the cache from an earlier process with equal sources: parsing these takes half of the planning time.

    Plugins outside the package prevent it: they may import modules that `package_digest` does not cover.
    """
    with suppress(OSError, ValueError, TypeError, LookupError):
        written = json.loads(memory.read_bytes())
        if written["of"] == [provenance.python_version(), package_digest()] and len(plugins.roots()) == 1:
            _codes.update({name: StageCode(str(code), tuple(used)) for name, (code, used) in written["codes"].items()})


def remember_codes(memory: Path = CODES) -> None:
    """Write the cache of stages' code; if that fails, the next process parses the sources again."""
    content = json.dumps({"of": [provenance.python_version(), package_digest()], "codes": _codes})
    with suppress(OSError, LeverPipeError):
        atomic.write_file(memory, lambda file: file.write(content.encode()))


def _digest_of(root: Path, paths: Iterable[Path]) -> str:
    whole = hashlib.sha256()
    for path in paths:
        whole.update(f"{path.relative_to(root)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()[:16]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def planned(jobs: Iterable[Any]) -> dict[str, tuple[str, str]]:
    """Return the plan of Snakemake's jobs; skip jobs of foreign rules, without identity or manifest."""
    identified = [job for job in jobs if hasattr(job.params, "spec") and hasattr(job.output, "manifest")]
    return {str(job.output.manifest): (job.rule.name, str(job.params.spec)) for job in identified}
