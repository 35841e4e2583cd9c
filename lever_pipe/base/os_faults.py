"""Faults of the machine as messages: a full disk, a folder that nobody may write to, a limit of the system."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from lever_pipe.base.errors import MachineError

FULL = (errno.ENOSPC, errno.EDQUOT)
REFUSALS = {
    *FULL,
    *(errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENAMETOOLONG),
    *(errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENODEV, errno.EISDIR, errno.EIO, errno.ESTALE),
}
"""What the machine refuses, where code need not be wrong."""
AGAIN = "Change that, then start again: what was complete is kept, and no half file stays."


def named(fault: OSError) -> MachineError | None:
    """Return a system's refusal as a message; None for any other fault, which may be one of code."""
    if fault.errno not in REFUSALS:
        return None
    path = os.fsdecode(fault.filename) if isinstance(fault.filename, str | bytes) else ""
    found = f"{(fault.strerror or '').lower()} ({errno.errorcode[fault.errno]})"
    if fault.errno in FULL and path:
        found += f"; without what was just tried, {_room(Path(path))}"
    return MachineError(f"expected to read or write {path or 'a file'}", found=found, do=AGAIN)


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
            raise MachineError(f"expected room to write {path}", found=_room(folder), do=AGAIN)


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
