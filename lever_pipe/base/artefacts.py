"""Artifacts on disk: the manifests below the results, and the current paths of their files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from lever_pipe.base import contents, storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.policy_names import PolicyName, values_in
from lever_pipe.base.records import Manifest

NO_MANIFESTS = frozenset(("ledger", "train2014", "val2014", "state"))
"""Folders below the results with many files and no manifest; the search skips them."""
STUDIES = ("lever", "intention")
"""Folders below the results with a study's artifacts."""
MANIFEST = "manifest"
"""The name of its manifest among an artifact's files."""


class Artefact(NamedTuple):
    """The files that one job has made, by their manifest.

    Attributes:
        manifest: the manifest's path.
        origin: its content; None if it cannot be read.
        paths: name -> path; paths below the results are adjusted if the results were moved.
    """

    manifest: Path
    origin: Manifest | None
    paths: Mapping[str, Path]

    @property
    def written(self) -> list[Path]:
        """Return the outputs, including the manifest."""
        return [path for name, path in self.paths.items() if self.origin is not None and name not in self.origin.inputs]


class Call(NamedTuple):
    """What a job makes, and from what; `inputs` and `outputs` map a name to a path or paths, without the manifest."""

    stage: str
    config: Mapping[str, Any]
    code: str
    inputs: Mapping[str, Path | tuple[Path, ...]]
    outputs: Mapping[str, Path | tuple[Path, ...]]
    manifest: Path


def read_artefact(manifest: Path) -> Artefact:
    """Read the artifact of a manifest, without checking its files."""
    origin: Manifest | None = None
    with suppress(RecordError, OSError):
        origin = storage.read_row(manifest, Manifest)
    if origin is None or any("\0" in path for path in origin.paths.values()):  # `open` would raise ValueError
        return Artefact(manifest, None, {})
    return Artefact(manifest, origin, _moved(origin.paths, manifest))


def manifests_below(results: Path) -> Iterator[Path]:
    """Yield the manifests below a folder, by folder and name."""
    for folder, subfolders, names in os.walk(results):
        subfolders[:] = sorted(name for name in subfolders if name not in NO_MANIFESTS and not name.startswith("."))
        yield from (Path(folder) / name for name in sorted(names) if contents.is_manifest(Path(name)))


def absolute(path: str | Path) -> str:
    """Return an absolute path for comparisons; links are not resolved."""
    return os.path.abspath(path)  # noqa: PTH100 - `resolve` follows links


def label(stage: str, path: str) -> str:
    """Return an artifact's name: `GRPO beta 0.15 epoch 2 of seed 1 (world, base 5)`, `score_answers of ...`."""
    is_answer = "answers" in PurePath(path).parts
    run = None if is_answer else PolicyName.in_path(path)
    if run:
        is_training = stage.startswith(("train_", "initialise_"))
        return run.label if is_training else f"{stage} of {run.label}"
    parts = [f"{name} {value}" for name, value in values_in(path).items()]
    if is_answer:
        parts = parts or [PurePath(path).parts[-2]]
    return f"{stage} ({', '.join(parts)})" if parts else stage


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by dotted key; a list is a leaf."""
    if not isinstance(value, Mapping) or (prefix and not value):
        return {prefix: value}
    leaves: dict[str, Any] = {}
    for key, inner in value.items():
        leaves |= flat(inner, f"{prefix}.{key}" if prefix else str(key))
    return leaves


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
