"""Copies of files that are digested while they are made, and that appear whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedRandom, BufferedReader
from pathlib import Path
from typing import IO, NamedTuple

from lever_pipe.base import storage, temporaries
from lever_pipe.base.errors import StoreError

CHUNK = 1 << 22  # bytes
FICLONE = 0x40049409
"""The ioctl by which a file shares the blocks of another until one of them is written; btrfs, XFS and others can."""
READ_ONLY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # nothing behind a link, no wait for the writer of a pipe
STALE_S = 3600.0  # seconds after which nobody is taken to work on a file any more
ATTEMPTS = 5
MARK = ".storing-"
"""How temporary names begin; they do not hold the final name, which may be as long as names can be."""


class Copied(NamedTuple):
    """What a file held, digest in 64 hexadecimal digits."""

    sha256: str
    size: int


def copy_file(source: Path, target: Path) -> Copied:
    """Copy a file to where none is, flush it to disk and return what it holds now.

    Raises:
        StoreError: the source is a link, or no file.
        OSError: it cannot be read, or there is no place.
    """
    with open_file(source) as read:
        try:
            with target.open("xb+") as write:
                copied = _copy(read, write)
                write.flush()
                os.fsync(write.fileno())
        except OSError as fault:
            fault.filename = fault.filename or str(target)  # a full disk does not say which
            raise
    return copied


def read_digest(path: Path) -> Copied:
    """Return what a file holds.

    Raises:
        StoreError: a link, or no file.
        OSError: it cannot be read.
    """
    with open_file(path) as handle:
        return Copied(_sha256(handle), os.fstat(handle.fileno()).st_size)


def open_file(path: Path) -> BufferedReader:
    """Return a regular file, opened for reading.

    Raises:
        StoreError: a link, or no file.
        OSError: it cannot be opened.
    """
    try:
        handle = os.fdopen(os.open(path, READ_ONLY), "rb")
    except IsADirectoryError:
        raise _no_file(path, "a folder") from None
    except OSError as fault:
        if fault.errno == errno.ELOOP:
            raise _no_file(path, "a symbolic link") from None
        raise
    if stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
        return handle
    handle.close()
    raise _no_file(path, "a device, pipe or socket")


@contextmanager
def temporary_below(folder: Path) -> Iterator[Path]:
    """Yield an empty folder of this process alone, and remove what is left of it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / temporary_name()
    try:
        path.mkdir()
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def all_beside(targets: Mapping[str, Path]) -> Iterator[dict[str, Path]]:
    """Yield a free path beside each target, and leave nothing there afterwards."""
    beside = {name: target.with_name(temporary_name()) for name, target in targets.items()}
    try:
        for parent in {target.parent for target in targets.values()}:
            parent.mkdir(parents=True, exist_ok=True)
            remove_stale(parent)
        yield beside
    finally:
        for path in beside.values():
            temporaries.remove(path)


def temporary_name() -> str:
    """Return a name that no process on any machine uses."""
    return f"{MARK}{secrets.token_hex(8)}"


def place(temporary: Path, target: Path) -> None:
    """Rename a file or folder to its final name; what has the name is replaced as a whole, a link as such."""
    for _ in range(ATTEMPTS):  # others may put something there at the same time
        if temporary.is_dir() or (target.is_dir() and not target.is_symlink()):
            _move_away(target)
        try:
            temporary.rename(target)
        except OSError as fault:
            if fault.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EISDIR, errno.ENOTDIR):
                raise
            continue
        storage.sync_folder(target.parent)
        return
    raise FileExistsError(errno.EEXIST, "something else is put there again and again", str(target))


def remove_stale(folder: Path) -> int:
    """Remove the temporary files of killed processes: those in which nothing has moved for an hour; return how many."""
    marked = [Path(entry.path) for entry in scan(folder, hidden=True) if entry.name.startswith(MARK)]
    now = file_system_time(folder) if marked else 0.0
    stale = [path for path in marked if now - _last_change(path) > STALE_S]
    for path in stale:
        temporaries.remove(path)
    return sum(not os.path.lexists(path) for path in stale)


def file_system_time(folder: Path) -> float:
    """Return the present in seconds as the file system has it, to which the times of its files compare.

    Where nothing can be written it is this machine's present; nothing can be removed there either.
    """
    try:
        with temporary_below(folder) as temporary:
            return temporary.stat().st_mtime
    except OSError:
        return time.time()


def scan(folder: Path, *, hidden: bool = False) -> list[os.DirEntry[str]]:
    """Return what lies in a folder, by name; nothing where there is none or it is a link.

    Raises:
        OSError: it cannot be read.
    """
    if folder.is_symlink():
        return []
    try:
        with os.scandir(folder) as entries:
            return sorted((e for e in entries if hidden or not e.name.startswith(".")), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []


def move(path: Path, aside: Path) -> bool:
    """Return whether a file could be renamed."""
    try:
        path.rename(aside)
    except OSError:
        return False
    return True


def put_back(aside: Path, path: Path) -> None:
    """Rename a file that was taken aside to its former name, unless another has that by now."""
    with suppress(OSError):
        if not path.exists():  # else a writer has put the same there
            aside.rename(path)


def sync_below(folder: Path) -> None:
    """Flush the names of a folder and of all folders below it to disk."""
    for parent, _, _ in os.walk(folder):
        storage.sync_folder(Path(parent))


def _move_away(path: Path) -> None:
    former = path.with_name(temporary_name())
    with suppress(FileNotFoundError):
        path.rename(former)
        temporaries.remove(former)


def _last_change(path: Path) -> float:
    """Return the latest modification time in a tree, in seconds; of what is gone, never."""
    newest = float("inf")
    with suppress(OSError):
        newest = path.lstat().st_mtime
        if not path.is_symlink():
            inside = (Path(parent) / name for parent, folders, files in os.walk(path) for name in (*folders, *files))
            newest = max([newest, *(each.lstat().st_mtime for each in inside)])
    return newest


def _copy(read: IO[bytes], write: BufferedRandom) -> Copied:
    if _clone(read, write):
        return Copied(_sha256(write), os.fstat(write.fileno()).st_size)
    digest, size = hashlib.sha256(), 0
    while chunk := read.read(CHUNK):
        digest.update(chunk)
        write.write(chunk)
        size += len(chunk)
    return Copied(digest.hexdigest(), size)


def _clone(read: IO[bytes], write: IO[bytes]) -> bool:
    """Return whether the file system has shared the blocks of a file with an empty one."""
    try:
        fcntl.ioctl(write.fileno(), FICLONE, read.fileno())
    except OSError:
        return False
    return True


def _sha256(handle: BufferedReader | BufferedRandom) -> str:
    handle.seek(0)
    return hashlib.file_digest(handle, "sha256").hexdigest()


def _no_file(path: Path, found: str) -> StoreError:
    return StoreError(f"{path}: expected a regular file", found=found, do="Replace it by a copy of what it stands for.")
