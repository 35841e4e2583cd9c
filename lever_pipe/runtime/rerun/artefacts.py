"""Artifacts on disk: the manifests below the results, and the current paths of their files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lever_pipe.base import contents
from lever_pipe.base.records import Manifest
from lever_pipe.experiment.manifests import MANIFEST, recorded

NO_MANIFESTS = frozenset(("ledger", "train2014", "val2014", "state"))
"""Folders below the results with many files and no manifest; the search skips them."""
TIMESTAMP = ".snakemake_timestamp"
"""Snakemake's file for a folder's modification time."""


class Artefact(NamedTuple):
    """A manifest, the current paths of its files, and the findings of `decision.check`, empty before the check.

    Attributes:
        manifest: the manifest's path.
        origin: its content; None if it cannot be read.
        paths: name -> path; paths below the results are adjusted if the results were moved.
        other: differences to a call: stage, configuration, code, library versions or set of files.
        missing: names of missing inputs and outputs.
        changed: inputs whose content differs from the recorded one.
        damaged: outputs that are incomplete, or whose content changed while the time did not.
        replaced: outputs that a user changed later -> digest of the new content.
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
        """Return the reason to make the artifact again; empty if it is valid."""
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
        """Return the outputs, including the manifest."""
        return [path for name, path in self.paths.items() if self.origin is not None and name not in self.origin.inputs]


def read_artefact(manifest: Path) -> Artefact:
    """Read the artifact of a manifest, without checking its files."""
    return Artefact(*recorded(manifest), (), (), (), (), {})


def manifests_below(results: Path) -> Iterator[Path]:
    """Yield the manifests below a folder, by folder and name."""
    for folder, subfolders, names in os.walk(results):
        subfolders[:] = sorted(name for name in subfolders if name not in NO_MANIFESTS and not name.startswith("."))
        yield from (Path(folder) / name for name in sorted(names) if contents.is_manifest(Path(name)))


def time_ns(path: Path) -> int:
    """Return a file's or folder's modification time by Snakemake's rules; 0 if it does not exist."""
    for candidate in (path / TIMESTAMP, path):
        with suppress(OSError):
            return candidate.stat().st_mtime_ns
    return 0


def set_time(path: Path, nanoseconds: int) -> None:
    """Set a file's or folder's modification time by Snakemake's rules, if permitted."""
    carrier = path / TIMESTAMP if (path / TIMESTAMP).exists() else path
    with suppress(OSError):  # a read-only folder: Snakemake plans the job, and `skipping` skips it
        os.utime(carrier, ns=(nanoseconds, nanoseconds))


class Maker(NamedTuple):
    """The artifact that contains a file as output, and the output's name."""

    artefact: Artefact
    origin: Manifest
    output: str


Makers = Mapping[str, Maker]
"""Absolute path of a file -> its maker."""


def makers_of(artefacts: Iterable[Artefact]) -> dict[str, Maker]:
    """Return the makers of all outputs of these artifacts, including the manifests themselves."""
    return {
        absolute(path): Maker(artefact, artefact.origin, name)
        for artefact in artefacts
        if artefact.origin is not None
        for name, path in artefact.paths.items()
        if name in artefact.origin.outputs or name == MANIFEST
    }


def absolute(path: str | Path) -> str:
    """Return an absolute path for comparisons; links are not resolved."""
    return os.path.abspath(path)  # noqa: PTH100 - `resolve` follows links
