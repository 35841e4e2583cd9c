"""The record beside every artefact of how it came to be, written last.

`watched` knows all files of a call before the stage opens one. So a card states what the stage read, not what lay there
when it ended, and a stage whose input was exchanged under it fails.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from lever_pipe.base import contents, numerics, provenance, storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.records import RunCard
from lever_pipe.experiment.stage_configs import Runtime

Inputs = Mapping[str, Path | tuple[Path, ...]]
EXTERNAL = frozenset(("lvlm", "encoder", "train_images", "eval_images", "state"))
"""Files of stages that are no rule's output: their content is part of the spec, or nobody's input."""
START = "start"
"""The policy that an agent's training starts from."""
MADE = {"generate_world": frozenset(("train_images", "eval_images"))}
"""Stage -> those of them that it makes itself."""
TENSOR_DIGITS = 16
"""Hexadecimal digits that tell one tensor from another to a reader; the file's own digest is whole."""


class _Call:
    """The files of a running stage, as they were before it began."""

    def __init__(self, stage: str, files: Inputs) -> None:
        self.files = digested(stage, files)
        self.before = {path: contents.digest(path) for path in self.files.values() if path.exists()}

    def made(self, read: Mapping[str, Path]) -> dict[str, Path]:
        """Return the outputs that are there: what was not read, the card aside."""
        return {n: path for n, path in self.files.items() if n not in read and n != "card" and path.exists()}

    def require_unchanged(self, name: str, path: Path, found: str) -> None:
        if self.before.get(path, found) != found:
            raise RecordError(
                f"{path}: expected the content that input '{name}' had when this stage began",
                found="other content: something wrote it meanwhile",
                do="Run again: what this stage made is not used.",
            )


_CALL: ContextVar[_Call | None] = ContextVar("call", default=None)


@contextmanager
def watched(stage: str, files: Inputs) -> Iterator[None]:
    """Let the cards that are written in the block tell all files of this call, by the content that it began with."""
    token = _CALL.set(_Call(stage, files))
    try:
        yield
    finally:
        _CALL.reset(token)


def write_card(card: Path, *, stage: str, config: BaseModel, inputs: Inputs, started: float, runtime: Runtime) -> None:
    """Write the run card of a stage that began at `started` (`time.perf_counter`).

    Raises:
        RecordError: an input has not the content any more that it had when the stage began.
        CheckpointError: an input or output is no whole safetensors file.
    """
    commit, dirty = provenance.commit_of()
    call, read = _CALL.get(), digested(stage, inputs)
    tensors = {name: contents.tensors_of(path) for name, path in read.items() if path.suffix == ".safetensors"}
    digests = {name: contents.digest(path) for name, path in read.items() if name not in tensors}
    digests |= {name: contents.of_tensors(found) for name, found in tensors.items()}
    made = call.made(read) if call is not None else {}
    for name, path in read.items():
        if call is not None:
            call.require_unchanged(name, path, digests[name])
    row = RunCard(
        stage=stage,
        config=config.model_dump(mode="json"),
        inputs=digests,
        code=runtime.code or provenance.code_of(stage),
        commit=commit,
        dirty=dirty,
        versions=provenance.installed_versions() | ({"numerics": numerics.path()} if runtime.device == "cpu" else {}),
        device=runtime.device,
        threads=runtime.threads,
        seconds=round(time.perf_counter() - started, 3),
        outputs={name: contents.digest(path) for name, path in made.items()},
        tensors={name: _shortened(found) for name, found in tensors.items()},
        paths={name: str(path) for name, path in {**read, **made, "card": card}.items()},
    )
    storage.write_row(card, row)


def digested(stage: str, files: Inputs) -> dict[str, Path]:
    """Return each file of a call that has a digest of its own in the run card, under one name."""
    external = EXTERNAL - MADE.get(stage, frozenset()) | ({START} if start_model(files) else set())
    return flat({name: value for name, value in files.items() if name not in external})


def start_model(files: Inputs) -> Path | None:
    """Return the model folder that an agent's training starts from; None where it starts from files of a rule."""
    start = files.get(START)
    return start[0] if isinstance(start, tuple) and len(start) == 1 and start[0].is_dir() else None


def files_of(named: Any) -> dict[str, Path | tuple[Path, ...]]:
    """Return the files that a job or its rule names, of Snakemake's own kinds of lists."""
    return {name: Path(value) if isinstance(value, str) else tuple(map(Path, value)) for name, value in named.items()}


def flat(files: Inputs) -> dict[str, Path]:
    """Return each file under one name: the members of a list as `name[0]`, `name[1]`."""
    found: dict[str, Path] = {}
    for name, value in files.items():
        found |= {name: value} if isinstance(value, Path) else {f"{name}[{i}]": path for i, path in enumerate(value)}
    return found


def _shortened(tensors: Mapping[str, str]) -> dict[str, str]:
    return {name: text[: text.index(" ") + 1 + TENSOR_DIGITS] for name, text in tensors.items()}
