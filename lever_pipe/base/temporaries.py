"""Names under which files and folders are written before they appear, and what killed writers left under such names."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

ABANDONED_AFTER_S = 7 * 24 * 3600.0
"""Age at which a writer that cannot be asked counts as killed: it may run on another machine."""

_WRITER = re.compile(r"(?:(?P<machine>[0-9a-f]{8})\.)?(?P<pid>[1-9][0-9]{0,9})\.(?:tmp|former)")
_IN_A_TEXT = re.compile(r"\(os error (\d+)\)")  # how libraries written in Rust pass the system's errors on


def beside(path: Path, kind: str = "tmp") -> Path:
    """Return a hidden sibling of `path` that no other process uses, on this machine or another."""
    return path.with_name(f".{path.name}.{_machine()}.{os.getpid()}.{kind}")


def remove(path: Path) -> None:
    """Remove a file or a folder as far as that is possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink()


def remove_abandoned(path: Path, *, own: Path) -> None:
    """Remove what killed writers of `path` left beside it.

    A writer of this machine counts as killed if its process is gone; any other after `ABANDONED_AFTER_S`. If one of
    those lives after all, it fails when it renames what is not there.

    Args:
        path: what they wrote.
        own: this process's temporary file or folder, just made: its time is the file system's present, whatever the
            clocks of machines say.
    """
    prefix = f".{path.name}."
    try:
        now = own.stat().st_mtime
        with os.scandir(path.parent) as entries:
            siblings = [entry for entry in entries if entry.name.startswith(prefix) and entry.name != own.name]
    except OSError:  # litter is no reason not to write
        return
    for entry in siblings:
        writer = _WRITER.fullmatch(entry.name, len(prefix))
        if writer is not None and _is_abandoned(entry, writer["machine"], int(writer["pid"]), now):
            remove(Path(entry.path))


@contextmanager
def blamed_on(path: Path, temporary: Path) -> Iterator[None]:
    """Let a fault of the system inside the block name `path`: a full disk names no file, others the temporary one."""
    try:
        yield
    except OSError as fault:
        if fault.errno is not None and str(fault.filename or temporary).startswith(str(temporary)):
            fault.filename, fault.filename2 = str(path), None
        raise
    except Exception as fault:
        number = _IN_A_TEXT.search(str(fault))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from fault


def _is_abandoned(entry: os.DirEntry[str], machine: str | None, pid: int, now: float) -> bool:
    if machine == _machine():
        return not _is_running(pid)
    try:
        return now - entry.stat(follow_symlinks=False).st_mtime > ABANDONED_AFTER_S
    except OSError:  # gone meanwhile
        return False


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        return True
    return True


@cache
def _machine() -> str:
    """Return eight digits for the boot and the process namespace: where they agree, process numbers mean the same."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return hashlib.sha256(f"{boot} {Path('/proc/self/ns/pid').readlink()}".encode()).hexdigest()[:8]
    except OSError:
        return secrets.token_hex(4)
