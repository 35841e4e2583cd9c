"""Compare artifacts with their manifests, and record what users replaced and which modules a fingerprint covers."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lever_pipe.base import contents, provenance, storage
from lever_pipe.base.artefacts import Artefact, manifests_below, read_artefact
from lever_pipe.base.contents import UNREADABLE, Digests
from lever_pipe.base.errors import LeverPipeError, RecordError
from lever_pipe.base.records import Row

log = logging.getLogger(f"snakemake.logging.{__name__}")  # also in the run's own log file
SAME_TIME_NS = 1_000_000_000
"""Snakemake sets the times of a job's outputs one after the other at the job's end, so they differ slightly."""
TIMESTAMP = ".snakemake_timestamp"
"""Snakemake's file for a folder's modification time."""
DISPLAY_LIMIT = 5
CODE_FOLDER = "code"
MODULE_DIGITS = 8
"""Hexadecimal digits of a module's digest, enough for readers to see a change; the fingerprint covers all."""


class Differences(NamedTuple):
    """The differences between an artifact's files and its manifest.

    Attributes:
        missing: names of missing inputs and outputs.
        changed: inputs with another content -> its digest.
        damaged: outputs that are incomplete, or whose content changed while the time did not.
        replaced: outputs that a user changed later -> digest of the new content.
    """

    missing: tuple[str, ...] = ()
    changed: Mapping[str, str] = {}
    damaged: tuple[str, ...] = ()
    replaced: Mapping[str, str] = {}


def state_of(artefact: Artefact, digests: Digests) -> Differences:
    """Compare an artifact's files with its manifest. A missing file is no damage; Snakemake makes it on demand."""
    origin = artefact.origin
    if origin is None:
        return Differences()
    recorded = origin.inputs | origin.outputs
    now = {name: digests.find(path) for name, path in artefact.paths.items() if name in recorded}
    others = {name: digest for name, digest in now.items() if digest is not None and digest != recorded[name]}

    # A user's edit gets a new time; other content with the job's own time can only be corruption.
    strange = [name for name in others if name in origin.outputs and others[name] != origin.replaced.get(name)]
    of_the_job = [n for n in strange if abs(time_ns(artefact.paths[n]) - time_ns(artefact.manifest)) <= SAME_TIME_NS]
    damaged = tuple(name for name in strange if name in of_the_job or others[name] == UNREADABLE)
    return Differences(
        missing=tuple(name for name, digest in now.items() if digest is None),
        changed={name: digest for name, digest in others.items() if name in origin.inputs},
        damaged=damaged,
        replaced={name: others[name] for name in others if name in origin.outputs and name not in damaged},
    )


def before_plan(results: Path) -> None:
    """Record replaced outputs in the manifests below the results, and warn of replaced or damaged files."""
    digests = contents.remembered()
    artefacts = [read_artefact(manifest) for manifest in manifests_below(results)]
    states = [state_of(artefact, digests) for artefact in artefacts]
    for artefact, state in zip(artefacts, states, strict=True):
        try:
            accept(artefact, state)
        except (LeverPipeError, OSError) as error:  # another user's results
            log.warning(f"{artefact.manifest}: a replaced output is not recorded: {error}")
    digests.save()
    for line in complaints(artefacts, states):
        log.warning(line)


def accept(artefact: Artefact, state: Differences) -> None:
    """Record a user's replacement of outputs in the manifest, so that it is valid from now on.

    An unrecorded change of a file that has its job's modification time counts as damage.
    """
    origin, manifest = artefact.origin, artefact.manifest
    if origin is None or state.replaced == origin.replaced:
        return
    if read_artefact(manifest).origin == origin:  # otherwise a job has made it again
        written = time_ns(manifest)  # kept, because `state_of` compares the outputs' times with it
        storage.write_row(manifest, origin.model_copy(update={"replaced": dict(state.replaced)}))
        set_time(manifest, written)


def complaints(artefacts: Sequence[Artefact], states: Sequence[Differences]) -> Iterator[str]:
    """Yield a line for each damaged or replaced file and each unreadable manifest, up to `DISPLAY_LIMIT`."""
    lines = []
    for artefact, state in zip(artefacts, states, strict=True):
        if artefact.origin is None:
            lines.append(f"{artefact.manifest}: expected a readable manifest; its outputs are made again if needed")
        lines += [
            f"{artefact.paths[name]}: expected the content in its manifest; found damage. It is made again if needed"
            for name in state.damaged
        ]
        lines += [
            f"{artefact.paths[name]}: replaced by a user after its rule made it. Jobs that read it run again; to get "
            "the rule's own output back, delete the file"
            for name in state.replaced
        ]
    yield from lines[:DISPLAY_LIMIT]
    if len(lines) > DISPLAY_LIMIT:
        n_damaged = sum(len(state.damaged) for state in states)
        yield f"... and {len(lines) - DISPLAY_LIMIT} more files like these ({n_damaged} damaged in all)"


def time_ns(path: Path) -> int:
    """Return a file's or folder's modification time by Snakemake's rules; 0 if it does not exist."""
    for candidate in (path / TIMESTAMP, path):
        with suppress(OSError):
            return candidate.stat().st_mtime_ns
    return 0


def set_time(path: Path, nanoseconds: int) -> None:
    """Set a file's or folder's modification time by Snakemake's rules, if permitted."""
    carrier = path / TIMESTAMP if (path / TIMESTAMP).exists() else path
    with suppress(OSError):  # a read-only folder: Snakemake plans the job, and `skip` skips it
        os.utime(carrier, ns=(nanoseconds, nanoseconds))


class CodeRecord(Row):
    """The modules of a code fingerprint; all artifacts share the file `<results>/code/<fingerprint>.json`."""

    python: str  # `3.11`
    modules: dict[str, str]  # module, `__init__` for the package -> digest of its syntax tree


def record_code(
    results: Path, stage: str, plugins: tuple[str, ...], code: str, *, root: Path = provenance.PACKAGE
) -> None:
    """Write the modules of a planned stage's fingerprint, unless recorded already or edited since."""
    path = results / CODE_FOLDER / f"{code}.json"
    if not path.exists() and provenance.code_of(stage, plugins, root=root) == code:
        storage.write_row(path, _modules_now(stage, plugins, root))


def code_differences(
    results: Path, code: str, stage: str, plugins: tuple[str, ...], *, root: Path = provenance.PACKAGE
) -> list[str] | None:
    """Return the differences between an artifact's code and a stage's current code; None without a record."""
    try:
        then = storage.read_row(results / CODE_FOLDER / f"{code}.json", CodeRecord)
    except (RecordError, OSError):
        return None
    now = _modules_now(stage, plugins, root)
    both = sorted(now.modules.keys() & then.modules.keys())
    changed = [f"{name} changed" for name in both if now.modules[name] != then.modules[name]]
    changed += [f"{name} is imported now" for name in sorted(now.modules.keys() - then.modules.keys())]
    changed += [f"{name} is not imported any more" for name in sorted(then.modules.keys() - now.modules.keys())]
    return changed + [f"Python {then.python} then, {now.python} now"] * (then.python != now.python)


def _modules_now(stage: str, plugins: tuple[str, ...], root: Path) -> CodeRecord:
    code = provenance.modules_of(stage, plugins, root=root)
    modules = {name.partition(".")[2] or "__init__": module.digest[:MODULE_DIGITS] for name, module in code.items()}
    return CodeRecord(python=provenance.python_version(), modules=modules)
