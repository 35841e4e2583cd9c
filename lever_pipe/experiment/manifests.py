"""Call a stage and write its manifest, the record of an artifact's origin, last.

A manifest lists the files of the stage's signature, with the input content that the stage read. A stage fails if an
input changes while it runs.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from lever_pipe.base import atomic, contents, numerics, provenance, storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.records import Manifest
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.experiment.stage_files import Role, declared

Files = Mapping[str, Path | tuple[Path, ...]]
Result = TypeVar("Result")
START = "start"
"""Name of the file parameter with the start policy of an agent's training."""


def carry_out(
    stage: Callable[..., Result], manifest: Path, *, config: BaseModel, runtime: Runtime = Runtime(), **files: Any
) -> Result:
    """Call a stage with its named files, write its manifest, and return the stage's result.

    The stage's state is deleted after the manifest is written.

    Raises:
        RecordError: an input's content changed while the stage ran.
        CheckpointError: an input or output is not a complete safetensors file.
    """
    given = files | {"config": config}
    if "runtime" in signature(stage).parameters:
        given["runtime"] = runtime
    manifest.unlink(missing_ok=True)  # first: a stale manifest must never describe this job's files
    inputs, outputs = files_of_manifest(stage, files)
    before = {name: contents.digest(path) for name, path in inputs.items() if path.exists()}
    started = time.perf_counter()
    result = stage(**given)
    written = {name: path for name, path in outputs.items() if path.exists()}
    row = _manifest(stage.__name__, config, runtime, time.perf_counter() - started, inputs, written, manifest)
    # Before the manifest is written: outputs without a manifest count as unfinished.
    _require_unchanged(inputs, before, row.inputs)
    storage.write_row(manifest, row)
    for name, parameter in declared(stage).items():
        if parameter.role is Role.STATE and files[name].exists():
            with suppress(OSError):  # the outputs are complete; failed clean-up must not fail the job
                atomic.drop(files[name])  # atomic: a later run must not resume from a partly deleted state
    return result


@cache
def surroundings() -> tuple[str, bool, dict[str, str]]:
    """Return the code's commit, whether tracked files differ from it, and the versions of numerical libraries.

    The result is cached: a process and its forks compute with the code that it has imported.
    """
    return *commit_of(), provenance.installed_versions()


def commit_of(folder: Path = provenance.PACKAGE) -> tuple[str, bool]:
    """Return the git commit of the code and whether tracked files differ from it; `unknown` outside git."""
    try:
        head = _git(folder, "rev-parse", "HEAD")
        return head, bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return "unknown", False


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True, timeout=20
    )
    return done.stdout.strip()


def files_of_manifest(stage: Callable[..., Any], files: Files) -> tuple[dict[str, Path], dict[str, Path]]:
    """Return the inputs and the outputs of a call, by flat name, as the manifest lists them.

    A model folder is neither, because its content is part of the spec.
    """
    ignored = {START} if start_model(files) else set()
    roles = {name: file.role for name, file in declared(stage).items() if name not in ignored}
    read, outputs = (
        flat({n: f for n, f in files.items() if roles.get(n) is role}) for role in (Role.INPUT, Role.OUTPUT)
    )
    return read, outputs


def start_model(files: Files) -> Path | None:
    """Return the model folder of an agent's start policy, or None if a rule's files provide that policy."""
    start = files.get(START)
    return start[0] if isinstance(start, tuple) and len(start) == 1 and start[0].is_dir() else None


def files_of(files: Any, folder: Path = Path()) -> dict[str, Path | tuple[Path, ...]]:
    """Convert a job's or rule's files from Snakemake's list types to paths below a folder."""
    return {n: folder / of if isinstance(of, str) else tuple(folder / path for path in of) for n, of in files.items()}


def flat(files: Files) -> dict[str, Path]:
    """Return each file under a unique name: the entries of a list as `name[0]`, `name[1]`."""
    paths: dict[str, Path] = {}
    for name, value in files.items():
        paths |= {name: value} if isinstance(value, Path) else {f"{name}[{i}]": path for i, path in enumerate(value)}
    return paths


def _manifest(
    stage: str,
    config: BaseModel,
    runtime: Runtime,
    seconds: float,
    inputs: Mapping[str, Path],
    outputs: Mapping[str, Path],
    manifest: Path,
) -> Manifest:
    commit, dirty, versions = surroundings()
    # Checkpoints are identified by their tensors, not their bytes: file metadata does not change a result.
    tensors = {name: contents.tensors_of(path) for name, path in inputs.items() if path.suffix == ".safetensors"}
    digests = {name: contents.digest(path) for name, path in inputs.items() if name not in tensors}
    # The numeric path sets CPU instructions, so only results of a CPU depend on it.
    return Manifest(
        stage=stage,
        config=config.model_dump(mode="json"),
        inputs=digests | {name: contents.of_tensors(digests_of) for name, digests_of in tensors.items()},
        code=runtime.code or provenance.code_of(stage),
        commit=commit,
        dirty=dirty,
        versions=versions | ({"numerics": numerics.path()} if runtime.device == "cpu" else {}),
        device=runtime.device,
        threads=runtime.threads,
        seconds=round(seconds, 3),
        outputs={name: contents.digest(path) for name, path in outputs.items()},
        tensors={name: contents.in_short(digests_of) for name, digests_of in tensors.items()},
        paths={name: str(path) for name, path in {**inputs, **outputs, "manifest": manifest}.items()},
    )


def _require_unchanged(inputs: Mapping[str, Path], before: Mapping[str, str], after: Mapping[str, str]) -> None:
    for name, path in inputs.items():
        if before.get(name, after[name]) != after[name]:
            raise RecordError(
                f"{path}: expected the content that input '{name}' had when this stage began",
                found="other content: another process changed it",
                do="Run again: this stage's outputs are not used.",
            )
