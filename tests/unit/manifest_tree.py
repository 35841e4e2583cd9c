"""Small results folders: files with their manifests, all dated a while ago."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from lever_pipe.base import contents, storage
from lever_pipe.base.artefacts import MANIFEST, Call
from lever_pipe.base.records import Manifest
from lever_pipe.runtime.snakemake_adapter import PlannedJob

LONG_AGO = 1_700_000_000
CODE = "0123456789abcdef"

Paths = str | list[str]


def write(path: str | Path, content: Any, *, now: bool = False) -> Path:
    """Write text, or tensors as safetensors; long ago, unless it is to look like an edit."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        save_file({name: np.asarray(values, dtype=np.float32) for name, values in content.items()}, path)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    if not now:
        os.utime(path, (LONG_AGO, LONG_AGO))
    return path


def make(
    manifest: str,
    stage: str,
    outputs: Mapping[str, tuple[str, Any]],
    *,
    inputs: Mapping[str, Paths] | None = None,
    config: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """Write an artifact: `outputs` maps a name to path and content, `inputs` to existing files.

    An output without content is there already, too.
    """
    written = {
        name: Path(path) if content is None else write(path, content) for name, (path, content) in outputs.items()
    }
    read = flat(inputs or {})
    tensors = {n: contents.tensors_of(Path(p)) for n, p in read.items() if p.endswith(".safetensors")}
    row = {
        "stage": stage,
        "config": dict(config or {}),
        "inputs": {name: contents.digest(Path(path)) for name, path in read.items()},
        "code": CODE,
        "commit": "c0ffee" * 6 + "beef",
        "dirty": False,
        "versions": {"python": "3.11.7"},
        "device": "cpu",
        "threads": 1,
        "seconds": 1.5,
        "outputs": {name: contents.digest(path) for name, path in written.items()},
        "tensors": {name: contents.in_short(of) for name, of in tensors.items()},
        "paths": {**read, **{name: str(path) for name, path in written.items()}, "manifest": manifest},
    }
    storage.write_row(Path(manifest), Manifest.model_validate(row | changes))
    os.utime(manifest, (LONG_AGO, LONG_AGO))
    return Path(manifest)


def flat(inputs: Mapping[str, Paths]) -> dict[str, str]:
    """Return each input under one name; inputs of a list get their index."""
    found: dict[str, str] = {}
    for name, paths in inputs.items():
        found |= {name: paths} if isinstance(paths, str) else {f"{name}[{i}]": path for i, path in enumerate(paths)}
    return found


def planned(
    rule: str,
    outputs: Mapping[str, str],
    *,
    inputs: Mapping[str, Paths] | None = None,
    config: Mapping[str, Any] | None = None,
    code: str = CODE,
    requested: tuple[str, ...] = (),
) -> PlannedJob:
    """Return a job as a dry run plans it; `outputs` include the manifest."""
    given = inputs or {}
    named = {name: Path(of) if isinstance(of, str) else tuple(map(Path, of)) for name, of in given.items()}
    made = {name: Path(path) for name, path in outputs.items() if name != MANIFEST}
    return PlannedJob(
        rule=rule,
        wildcards={},
        reason="Params have changed since last execution",
        threads=1,
        resources={},
        inputs=tuple(flat(given).values()),
        outputs=tuple(outputs.values()),
        triggers=requested,
        call=Call(rule, dict(config or {}), code, named, made, Path(outputs[MANIFEST]))
        if MANIFEST in outputs
        else None,
    )
