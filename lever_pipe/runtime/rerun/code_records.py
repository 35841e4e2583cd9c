"""What a code fingerprint consists of, kept below the results, so that a later version can say which modules differ.

`<results>/code/<fingerprint>.json` holds the version of Python and the digest of each module. A fingerprint stands for
one set of modules, so a file is written once and serves every artefact that was made by this code.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from lever_pipe.base import provenance, storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.records import Row

FOLDER = "code"
FINGERPRINT = re.compile(r"[0-9a-f]{16}")


class CodeRecord(Row):
    """The modules behind a fingerprint."""

    python: str  # `3.11`
    modules: dict[str, str]  # module without the package's name -> digest of its syntax tree


class CodeDifference(NamedTuple):
    """What differs between the code of an artefact and the present one; all empty: nothing that is recorded.

    Attributes:
        changed: modules with another syntax tree; comments and docstrings do not count.
        added: modules that only the present code imports.
        removed: modules that only the artefact's code imported.
        python: the artefact's version and the present one; empty where they are the same.
    """

    changed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    python: tuple[str, ...] = ()


def record(
    results: Path, stage: str, members: tuple[str, ...], code: str, *, root: Path = provenance.PACKAGE
) -> Path | None:
    """Write what a planned stage's fingerprint consists of, unless it is known; return the file.

    Returns None, and writes nothing, where the modules are not those of `code`: a record that is wrong helps nobody.
    """
    path = _path(results, code)
    if path is None or provenance.code_of(stage, members, root=root) != code:
        return None
    if not path.exists():
        modules = provenance.modules_of(stage, members, root=root)
        storage.write_row(path, CodeRecord(python=provenance.python_version(), modules=modules))
    return path


def differing(
    results: Path, code: str, stage: str, members: tuple[str, ...], *, root: Path = provenance.PACKAGE
) -> CodeDifference | None:
    """Return in what the code of an artefact differs from a stage's present one; None without a record of it."""
    path = _path(results, code)
    if path is None:
        return None
    try:
        then = storage.read_row(path, CodeRecord)
    except RecordError:
        return None
    now, python = provenance.modules_of(stage, members, root=root), provenance.python_version()
    return CodeDifference(
        changed=tuple(sorted(name for name in now.keys() & then.modules.keys() if now[name] != then.modules[name])),
        added=tuple(sorted(now.keys() - then.modules.keys())),
        removed=tuple(sorted(then.modules.keys() - now.keys())),
        python=() if then.python == python else (then.python, python),
    )


def _path(results: Path, code: str) -> Path | None:
    """Return where a fingerprint's record lies; None for what is none, so that no card leads elsewhere."""
    return results / FOLDER / f"{code}.json" if FINGERPRINT.fullmatch(code) else None
