"""Folders that appear whole or not at all."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

from lever_pipe.base import storage, temporaries

_HERE = -100  # AT_FDCWD
_EXCHANGE = 2  # RENAME_EXCHANGE


def write_folder(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a sibling temporary folder, then put it in the place of `path`.

    A killed process or a power failure leaves the former folder or the whole one, never half of one; files of a former
    run do not survive in it. File systems that cannot exchange two names, as NFS, may be left without either.

    Raises:
        OSError: the system refuses; it names `path`, which is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporaries.beside(path)
    with temporaries.blamed_on(path, temporary):
        try:
            temporaries.remove(temporary)  # of a killed process that had this one's number
            temporary.mkdir()
            temporaries.remove_abandoned(path, own=temporary)
            write(temporary)
            _sync(temporary)
            _put_in_place(temporary, path)
            storage.sync_folder(path.parent)
        finally:
            temporaries.remove(temporary)


def _put_in_place(temporary: Path, path: Path) -> None:
    if not path.exists():
        temporary.rename(path)
    elif not _exchange(temporary, path):
        former = temporaries.beside(path, "former")
        path.rename(former)
        try:
            temporary.rename(path)
        except OSError:
            former.rename(path)
            raise
        temporaries.remove(former)


def _exchange(one: Path, other: Path) -> bool:
    """Swap what two names stand for in one step; return False where the system or the file system cannot."""
    try:
        swap = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError):  # not Linux
        return False
    return bool(swap(_HERE, os.fsencode(one), _HERE, os.fsencode(other), ctypes.c_uint(_EXCHANGE)) == 0)


def _sync(folder: Path) -> None:
    for parent, _, names in os.walk(folder):
        for name in names:
            with (Path(parent) / name).open("rb") as handle:
                os.fsync(handle.fileno())
        storage.sync_folder(Path(parent))
