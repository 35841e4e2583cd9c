"""Copies of files that are digested while they are made, share blocks where the file system can, and are on disk."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from io import BufferedRandom, BufferedReader
from pathlib import Path
from typing import NoReturn

from lever_pipe.base.errors import StoreError

CHUNK = 1 << 22  # bytes
FICLONE = 0x40049409
"""The ioctl by which a file shares the blocks of another until one of them is written; btrfs, XFS and others can."""
READ_ONLY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # nothing behind a link, no wait for the writer of a pipe


def open_file(path: Path) -> BufferedReader:
    """Return a regular file, opened for reading.

    Raises:
        StoreError: a link, or no file.
        OSError: it cannot be opened.
    """
    try:
        handle = os.fdopen(os.open(path, READ_ONLY), "rb")
    except IsADirectoryError:
        found = "a folder"
    except OSError as fault:
        if fault.errno != errno.ELOOP:
            raise
        found = "a symbolic link"
    else:
        if stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
            return handle
        handle.close()
        found = "a device, pipe or socket"
    raise StoreError(
        f"{path}: expected a regular file", found=found, do="Replace it by a copy of what it stands for."
    ) from None


def copy_file(source: Path, target: Path) -> str:
    """Copy a file to where none is, flush it to disk and return the sha256 of what it holds now.

    Raises:
        StoreError: the source is a link, or no file.
        OSError: it cannot be read, or there is no place.
    """
    with open_file(source) as read:
        try:
            with target.open("xb+") as write:
                sha256 = _copy(read, write)
                write.flush()
                os.fsync(write.fileno())
        except OSError as fault:
            fault.filename = fault.filename or str(target)  # a full disk does not say which
            raise
    return sha256


def digest_of(path: Path) -> str:
    """Return the sha256 of a file.

    Raises:
        StoreError: a link, or no file.
        OSError: it cannot be read.
    """
    with open_file(path) as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def sizes_below(folder: Path) -> dict[str, int]:
    """Return the bytes of everything below a folder that is no folder, by its path there.

    Raises:
        OSError: some of it cannot be listed.
    """
    names = (Path(parent) / name for parent, _, names in os.walk(folder, onerror=_raise) for name in names)
    return {path.relative_to(folder).as_posix(): path.lstat().st_size for path in names}


def bytes_of(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder."""
    return sum(sizes_below(path).values()) if path.is_dir() else path.lstat().st_size


def _copy(read: BufferedReader, write: BufferedRandom) -> str:
    try:
        fcntl.ioctl(write.fileno(), FICLONE, read.fileno())
    except OSError:  # no shared blocks here
        digest = hashlib.sha256()
        while chunk := read.read(CHUNK):
            digest.update(chunk)
            write.write(chunk)
        return digest.hexdigest()
    write.seek(0)
    return hashlib.file_digest(write, "sha256").hexdigest()


def _raise(fault: OSError) -> NoReturn:
    raise fault
