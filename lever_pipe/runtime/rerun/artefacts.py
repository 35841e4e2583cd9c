"""Artefacts on disk: the manifests below the results, and where the files lie that they name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lever_pipe.base import contents, storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.records import Manifest

NO_MANIFESTS = frozenset(("ledger", "train2014", "val2014", "state"))
"""Folders below the results that hold many files and no manifest."""
TIMESTAMP = ".snakemake_timestamp"
"""Snakemake's carrier of a folder's time."""
MANIFEST = "manifest"
"""The name of its manifest among an artefact's files."""


class Artefact(NamedTuple):
    """A manifest, where its files lie now, and, once checked by their contents, what they are worth.

    Attributes:
        manifest: the manifest's path.
        origin: what it says; None if it cannot be read.
        paths: name -> path; those under the results follow them where these were moved.
        other: in what another call has made it: stage, configuration, code or set of files.
        missing: inputs and outputs that are not there.
        changed: inputs that have another content than it was made from.
        damaged: outputs that are not whole, or that got another content without another time.
        replaced: outputs that got another content later, and its digest: somebody put them there.
    """

    manifest: Path
    origin: Manifest | None
    paths: Mapping[str, Path]
    other: tuple[str, ...]
    missing: tuple[str, ...]
    changed: tuple[str, ...]
    damaged: tuple[str, ...]
    replaced: Mapping[str, str]

    @property
    def reason(self) -> str:
        """Return why the artefact has to be made again; nothing if it has not."""
        if self.origin is None:
            return f"{self.manifest} cannot be read"
        parts = [f"of another {', '.join(self.other)}"] if self.other else []
        parts += [f"damaged: {', '.join(self.damaged)}"] if self.damaged else []
        parts += [f"other content of {', '.join(self.changed)}"] if self.changed else []
        return "; ".join(parts)

    @property
    def read(self) -> list[Path]:
        """Return the inputs."""
        return [path for name, path in self.paths.items() if self.origin is not None and name in self.origin.inputs]

    @property
    def written(self) -> list[Path]:
        """Return the outputs, the manifest among them."""
        return [path for name, path in self.paths.items() if self.origin is not None and name not in self.origin.inputs]


def read_artefact(manifest: Path) -> Artefact:
    """Return the artefact of a manifest, which nobody has scored yet."""
    origin: Manifest | None = None
    with suppress(RecordError, OSError):
        origin = storage.read_row(manifest, Manifest)
    if origin is not None and any("\0" in path for path in origin.paths.values()):  # no file has such a name
        origin = None
    return Artefact(manifest, origin, _moved(origin.paths, manifest) if origin is not None else {}, (), (), (), (), {})


def manifests_below(results: Path) -> Iterator[Path]:
    """Yield the manifests below a folder, by folder and name."""
    for folder, subfolders, names in os.walk(results):
        subfolders[:] = sorted(name for name in subfolders if name not in NO_MANIFESTS and not name.startswith("."))
        yield from (Path(folder) / name for name in sorted(names) if contents.is_manifest(Path(name)))


def time_ns(path: Path) -> int:
    """Return a file's or folder's time as Snakemake takes it; 0 without one."""
    for candidate in (path / TIMESTAMP, path):
        with suppress(OSError):
            return candidate.stat().st_mtime_ns
    return 0


def set_time(path: Path, nanoseconds: int) -> None:
    """Set a file's or folder's time as Snakemake takes it, if this user may."""
    carrier = path / TIMESTAMP if (path / TIMESTAMP).exists() else path
    with suppress(OSError):  # a folder that may only be read: Snakemake looks at the job, and it is skipped then
        os.utime(carrier, ns=(nanoseconds, nanoseconds))


def _moved(paths: Mapping[str, str], manifest: Path) -> dict[str, Path]:
    """Return the paths as they are where the results were moved or copied to."""
    then, now = Path(paths.get(MANIFEST, str(manifest))).parts, manifest.parts
    same = 0
    while same < min(len(then), len(now)) and then[-1 - same] == now[-1 - same]:
        same += 1
    old, root = Path(*then[: len(then) - same]), Path(*now[: len(now) - same])
    if same == 0 or old == root:
        return {name: Path(path) for name, path in paths.items()}
    inside = {name: Path(path).is_relative_to(old) for name, path in paths.items()}
    return {n: root / Path(p).relative_to(old) if inside[n] else Path(p) for n, p in paths.items()}


class Maker(NamedTuple):
    """Which artefact a file is an output of, and under which name."""

    artefact: Artefact
    origin: Manifest
    output: str


Makers = Mapping[str, Maker]
"""Absolute path of a file -> its maker."""


def makers_of(artefacts: Iterable[Artefact]) -> dict[str, Maker]:
    """Return the makers of all files that manifests state as their outputs, the manifests themselves among them."""
    return {
        absolute(path): Maker(artefact, artefact.origin, name)
        for artefact in artefacts
        if artefact.origin is not None
        for name, path in artefact.paths.items()
        if name in artefact.origin.outputs or name == MANIFEST
    }


def absolute(path: str | Path) -> str:
    """Return a path by which files are compared; links are not resolved."""
    return os.path.abspath(path)  # noqa: PTH100 - `resolve` follows links
