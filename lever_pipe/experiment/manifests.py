"""Call a stage and write its manifest, the record of an artifact's origin, last.

A manifest lists the files of the stage's signature, with the input content that the stage read. A stage fails if an
input changes while it runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel

from lever_pipe.base import atomic, contents, numerics, provenance, storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.records import Manifest
from lever_pipe.experiment.stage_configs import Runtime
from lever_pipe.experiment.stage_files import Role, declared

Files = Mapping[str, Path | tuple[Path, ...]]
Result = TypeVar("Result")
MANIFEST = "manifest"
"""The name of its manifest among an artifact's files."""
START = "start"
"""Name of the file parameter with the start policy of an agent's training."""


class Recorded(NamedTuple):
    """A manifest's path, its content (None if it cannot be read), and the current paths of its files by name."""

    manifest: Path
    origin: Manifest | None
    paths: Mapping[str, Path]


def recorded(manifest: Path) -> Recorded:
    """Read a manifest; the paths below the results are adjusted if the results were moved."""
    origin: Manifest | None = None
    with suppress(RecordError, OSError):
        origin = storage.read_row(manifest, Manifest)
    if origin is not None and any("\0" in path for path in origin.paths.values()):  # `open` would raise ValueError
        origin = None
    return Recorded(manifest, origin, _moved(origin.paths, manifest) if origin is not None else {})


def _moved(paths: Mapping[str, str], manifest: Path) -> dict[str, Path]:
    """Return the paths of a manifest, adjusted if the results were moved or copied.

    The recorded and the current path of the manifest have an equal end; the parts before it are the old and new root.
    """
    then, now = Path(paths.get(MANIFEST, str(manifest))).parts, manifest.parts
    same = 0
    while same < min(len(then), len(now)) and then[-1 - same] == now[-1 - same]:
        same += 1
    old, root = Path(*then[: len(then) - same]), Path(*now[: len(now) - same])
    if same == 0 or old == root:
        return {name: Path(path) for name, path in paths.items()}
    inside = {name: Path(path).is_relative_to(old) for name, path in paths.items()}
    return {n: root / Path(p).relative_to(old) if inside[n] else Path(p) for n, p in paths.items()}


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
    return *provenance.commit_of(), provenance.installed_versions()


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


def files_of(files: Any) -> dict[str, Path | tuple[Path, ...]]:
    """Convert a job's or rule's files from Snakemake's list types to paths."""
    return {name: Path(value) if isinstance(value, str) else tuple(map(Path, value)) for name, value in files.items()}


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
        paths={name: str(path) for name, path in {**inputs, **outputs, MANIFEST: manifest}.items()},
    )


def _require_unchanged(inputs: Mapping[str, Path], before: Mapping[str, str], after: Mapping[str, str]) -> None:
    for name, path in inputs.items():
        if before.get(name, after[name]) != after[name]:
            raise RecordError(
                f"{path}: expected the content that input '{name}' had when this stage began",
                found="other content: another process changed it",
                do="Run again: this stage's outputs are not used.",
            )
