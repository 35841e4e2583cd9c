"""The record beside every artefact of how it came to be, written last."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel

from lever_pipe import provenance, storage
from lever_pipe.records import RunCard
from lever_pipe.stage_configs import Runtime

Inputs = Mapping[str, Path | tuple[Path, ...]]


def write_card(card: Path, *, stage: str, config: BaseModel, inputs: Inputs, started: float, runtime: Runtime) -> None:
    """Write the run card of a stage that began at `started` (`time.perf_counter`)."""
    commit, dirty = provenance.commit_of()
    row = RunCard(
        stage=stage,
        config=config.model_dump(mode="json"),
        inputs=_digests(inputs),
        code=runtime.code or provenance.code_of(stage),
        commit=commit,
        dirty=dirty,
        versions=provenance.installed_versions(),
        device=runtime.device,
        threads=runtime.threads,
        seconds=round(time.perf_counter() - started, 3),
    )
    storage.write_row(card, row)


def _digests(inputs: Inputs) -> dict[str, str]:
    digests: dict[str, str] = {}
    for name, value in inputs.items():
        if isinstance(value, Path):
            digests[name] = storage.digest(value)
        else:
            digests.update({f"{name}[{i}]": storage.digest(path) for i, path in enumerate(value)})
    return digests
