"""The call of a stage, and the record beside every artefact of how it came to be, written last.

A manifest tells the files of the stage's signature. It states what the stage read, not what lay there when it ended: a
stage whose input was exchanged under it fails.
"""

from __future__ import annotations

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
from lever_pipe.experiment.stage_configs import Runtime
from lever_pipe.experiment.stage_files import Role, declared

Files = Mapping[str, Path | tuple[Path, ...]]
Result = TypeVar("Result")
START = "start"
"""The policy that an agent's training starts from."""


def carry_out(
    stage: Callable[..., Result], manifest: Path, *, config: BaseModel, runtime: Runtime = Runtime(), **files: Any
) -> Result:
    """Call a stage with its named files, write its manifest, and return what the stage returns.

    A stage's state goes when the manifest is there.

    Raises:
        RecordError: an input has not the content any more that it had when the stage began.
        CheckpointError: an input or output is no whole safetensors file.
    """
    given = files | {"config": config}
    if "runtime" in signature(stage).parameters:
        given["runtime"] = runtime
    manifest.unlink(missing_ok=True)  # first: no manifest may stand beside the files of two jobs
    inputs, outputs = files_of_manifest(stage, files)
    before = {name: contents.digest(path) for name, path in inputs.items() if path.exists()}
    started = time.perf_counter()
    result = stage(**given)
    written = {name: path for name, path in outputs.items() if path.exists()}
    row = _manifest(stage.__name__, config, runtime, time.perf_counter() - started, inputs, written, manifest)
    _require_unchanged(inputs, before, row.inputs)
    storage.write_row(manifest, row)
    for name, parameter in declared(stage).items():
        if parameter.role is Role.STATE and files[name].exists():
            with suppress(OSError):  # the work is done; what is left of its state goes with the next attempt
                atomic.drop(files[name])  # half of it would be none to go on from
    return result


@cache
def surroundings() -> tuple[str, bool, dict[str, str]]:
    """Return the commit of the code, whether tracked files differ from it, and the versions of what moves numbers.

    Asked once in a process: its forks compute with what it has imported.
    """
    return *provenance.commit_of(), provenance.installed_versions()


def files_of_manifest(stage: Callable[..., Any], files: Files) -> tuple[dict[str, Path], dict[str, Path]]:
    """Return what a stage reads and what it makes, of the files of a call: all that its manifest tells, flat.

    A model folder is neither: what it holds is part of the spec.
    """
    ignored = {START} if start_model(files) else set()
    roles = {name: file.role for name, file in declared(stage).items() if name not in ignored}
    read, outputs = (
        flat({n: f for n, f in files.items() if roles.get(n) is role}) for role in (Role.INPUT, Role.OUTPUT)
    )
    return read, outputs


def start_model(files: Files) -> Path | None:
    """Return the model folder that an agent's training starts from; None where it starts from files of a rule."""
    start = files.get(START)
    return start[0] if isinstance(start, tuple) and len(start) == 1 and start[0].is_dir() else None


def files_of(files: Any) -> dict[str, Path | tuple[Path, ...]]:
    """Return the files that a job or its rule names, of Snakemake's own kinds of lists."""
    return {name: Path(value) if isinstance(value, str) else tuple(map(Path, value)) for name, value in files.items()}


def flat(files: Files) -> dict[str, Path]:
    """Return each file under one name: the members of a list as `name[0]`, `name[1]`."""
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
    tensors = {name: contents.tensors_of(path) for name, path in inputs.items() if path.suffix == ".safetensors"}
    digests = {name: contents.digest(path) for name, path in inputs.items() if name not in tensors}
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
                found="other content: something wrote it meanwhile",
                do="Run again: what this stage made is not used.",
            )
