"""Faults of the machine as messages: a full disk, a folder that nobody may write to, a limit of the system."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from lever_pipe.base.errors import MachineError

FULL = (errno.ENOSPC, errno.EDQUOT)
AGAIN = "then start again: what was complete is kept, and no half file stays."


class _Advice(NamedTuple):
    expected: str
    do: str


_ROOM = "room on the file system to write"
_PERMIT = "permission to read or write"
_ADVICE = {
    errno.ENOSPC: _Advice(_ROOM, f"Free space or inodes there, {AGAIN}"),
    errno.EDQUOT: _Advice(_ROOM, f"Remove files of this user or ask for a larger quota, {AGAIN}"),
    errno.EFBIG: _Advice("leave to write a file as large as", f"Raise the limit (ulimit -f unlimited), {AGAIN}"),
    errno.EROFS: _Advice("a file system that can be written to, for", f"Mount it writable or choose another, {AGAIN}"),
    errno.EACCES: _Advice(_PERMIT, f"Give this user the right to write in that folder, {AGAIN}"),
    errno.EPERM: _Advice(_PERMIT, f"Give this user the right to write in that folder, {AGAIN}"),
    errno.EMFILE: _Advice("a free file descriptor for", f"Raise the limit (ulimit -n 4096), {AGAIN}"),
    errno.ENFILE: _Advice("a free file descriptor for", f"End other processes of this machine, {AGAIN}"),
    errno.ENAMETOOLONG: _Advice(
        "a name that the file system can hold:", "Shorten the name or the path of the project."
    ),
    errno.ENOTDIR: _Advice("only folders on the way to", "Move the file that stands in the place of a folder."),
    errno.EEXIST: _Advice("a folder, or nothing, at", "Move the file that stands in the place of the folder."),
    errno.ELOOP: _Advice("a path that ends, not", "Remove the link that leads to itself."),
    errno.ENODEV: _Advice("a regular file at", "Put a file there; a pipe or device may have no end."),
    errno.EISDIR: _Advice("a file, or nothing, at", "Move the folder that stands in the place of the file."),
    errno.EIO: _Advice("a disk that reads and writes", f"Look for its faults in the system's log (dmesg), {AGAIN}"),
    errno.ESTALE: _Advice("a file server that still knows", f"Mount its file system anew, {AGAIN}"),
}


def named(fault: OSError) -> MachineError | None:
    """Return a system's refusal as a message with its remedy; None for any other fault, which may be one of code."""
    advice = _ADVICE.get(fault.errno or 0)
    if advice is None:
        return None
    path = os.fsdecode(fault.filename) if isinstance(fault.filename, str | bytes) else ""
    found = f"{(fault.strerror or '').lower()} ({errno.errorcode[fault.errno or 0]})"
    if fault.errno in FULL and path:
        found += f"; without what was just tried, {_room(Path(path))}"
    return MachineError(f"expected {advice.expected} {path or 'a file'}", found=found, do=advice.do)


def require_writable(paths: Iterable[Path], *, kept: Iterable[Path] = ()) -> None:
    """Refuse a job whose results could not be written, before it computes anything.

    A path that is there may be an input and is not looked at. One that is not is a result, or an input that is missing.

    Args:
        paths: of the job's files.
        kept: what is kept for later jobs if there is room.

    Raises:
        MachineError: this user may not write where it should be, or there is no room at all.
    """
    results = {_nearest(path): path for path in reversed([path for path in paths if not os.path.lexists(path)])}
    for folder, path in ({_nearest(path): path for path in kept} | results).items():
        if not os.access(folder, os.W_OK | os.X_OK):
            raise MachineError(
                f"expected {path}, or a folder in which it can be written",
                found=f"no such file, and {folder} {_why_not(folder)}",
                do="Let this user write there (permissions, mount options), or choose another folder.",
            )
        if folder in results and _is_full(folder):
            raise MachineError(f"expected {_ROOM} {path}", found=_room(folder), do=_ADVICE[errno.ENOSPC].do)


def _nearest(path: Path) -> Path:
    """Return the lowest folder above a path that is there."""
    return next((parent for parent in path.absolute().parents if parent.exists()), Path("/"))


def _why_not(folder: Path) -> str:
    if not folder.is_dir():
        return "is no folder"
    try:
        is_read_only = bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except OSError:
        is_read_only = False
    return "is on a read-only file system" if is_read_only else f"is not writable for user {os.getuid()}"


def _is_full(folder: Path) -> bool:
    found = os.statvfs(folder)
    return (found.f_blocks > 0 and found.f_bavail == 0) or (found.f_files > 0 and found.f_favail == 0)


def _room(path: Path) -> str:
    """Return how much is left where a path is or would be; a full disk may lack inodes instead of bytes."""
    folder = path if path.is_dir() else _nearest(path)
    try:
        found = os.statvfs(folder)
    except OSError:
        return "nobody knows how much is left"
    left = f"{found.f_bavail * found.f_frsize / 2**20:.1f} of {found.f_blocks * found.f_frsize / 2**20:.1f} MiB"
    inodes = f" and {found.f_favail} of {found.f_files} inodes" if found.f_files else ""
    return f"{left}{inodes} left in {folder}"
