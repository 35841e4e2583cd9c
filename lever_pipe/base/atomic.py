"""Files and folders that appear whole or not at all, and what killed writers leave of them.

Everything is written under a hidden temporary name beside its final one, flushed to disk and renamed. The temporary
name says which process of which machine writes: `.MACHINE.PROCESS.RANDOM.tmp`. So whoever writes into the folder next
can tell what nobody works on any more: here by the process, of another machine by age.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO

ABANDONED_S = 7 * 24 * 3600.0
"""Age at which a writer that cannot be asked counts as killed: it may run on another machine."""

_NAME = re.compile(r"\.(?P<machine>[0-9a-z]+)\.(?P<pid>[1-9][0-9]{0,9})\.[0-9a-f]{8}\.tmp")
_HERE = -100  # AT_FDCWD
_EXCHANGE = 2  # RENAME_EXCHANGE


def write_file(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Let `write` fill a temporary file, then put it in the place of `path`.

    A killed process or a power failure leaves the former file, or none, but never half of one. When this returns the
    name is on disk too, so what is written last says that all is there.

    Raises:
        OSError: the system refuses; it names `path`, which is as it was.
    """
    with _replacing(path) as temporary:
        with temporary.open("xb") as handle:
            sweep(temporary)
            write(handle)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
        sync_folder(path.parent)


def write_folder(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary folder, then put it in the place of `path`.

    A killed process or a power failure leaves the former folder or the whole one, never half of one; files of a former
    run do not survive in it. File systems that cannot exchange two names, as NFS, may be left without either.

    Raises:
        OSError: the system refuses; it names `path`, which is as it was.
    """
    with _replacing(path) as temporary:
        temporary.mkdir()
        sweep(temporary)
        write(temporary)
        for parent, _, names in os.walk(temporary):
            for name in names:
                with (Path(parent) / name).open("rb") as handle:
                    os.fsync(handle.fileno())
        place(temporary, path)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield a name for what is to take the place of a path, and remove what still has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_in(path.parent)
    with blamed_on(path, temporary):
        try:
            yield temporary
        finally:
            remove(temporary)


def write_texts(path: Path, texts: Mapping[str, str]) -> None:
    """Write a folder of UTF-8 texts by their paths in it, as `write_folder`."""

    def write(folder: Path) -> None:
        for name, text in texts.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8", newline="")

    write_folder(path, write)


@contextmanager
def folder_in(parent: Path) -> Iterator[Path]:
    """Yield an empty temporary folder, and remove what is left of it."""
    parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_in(parent)
    try:
        temporary.mkdir()
        yield temporary
    finally:
        remove(temporary)


def temporary_in(folder: Path) -> Path:
    """Return a path in a folder that no process on any machine uses."""
    return folder / f".{machine()}.{os.getpid()}.{secrets.token_hex(4)}.tmp"


def place(temporary: Path, path: Path) -> None:
    """Give a file or folder its final name, on disk; what has the name is replaced as a whole, a link as such."""
    is_folder = temporary.is_dir()
    if is_folder:
        for parent, _, _ in os.walk(temporary):
            sync_folder(Path(parent))
    if not os.path.lexists(path):
        temporary.rename(path)
    elif not is_folder and (path.is_symlink() or not path.is_dir()):
        temporary.replace(path)
    elif not _exchange(temporary, path):
        former = temporary_in(path.parent)
        path.rename(former)
        try:
            temporary.rename(path)
        except OSError:
            former.rename(path)
            raise
        remove(former)
    else:
        remove(temporary)
    sync_folder(path.parent)


def drop(folder: Path) -> None:
    """Remove a folder, first from its name, then from the disk: no half of it is met under its name.

    A network file system keeps files that are still mapped; what is left goes as what killed writers left.
    """
    dropped = temporary_in(folder.parent)
    folder.rename(dropped)
    remove(dropped)


def remove(path: Path) -> None:
    """Remove a file or a folder as far as that is possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink()


def sweep(own: Path) -> None:
    """Remove what killed writers left in the folder of `own`.

    If one of those lives after all, it fails when it renames what is not there.

    Args:
        own: this process's temporary file or folder, just made: its time is the file system's present, whatever the
            clocks of machines say.
    """
    with suppress(OSError):  # litter is no reason not to write
        now = own.stat().st_mtime
        with os.scandir(own.parent) as entries:
            left = [Path(entry.path) for entry in entries if entry.name != own.name]
        for path in left:
            if is_abandoned(path, now):
                remove(path)


def is_abandoned(path: Path, now: float) -> bool:
    """Return whether a path is a temporary one whose writer is gone, at a time of the file system in seconds."""
    writer = _NAME.fullmatch(path.name)
    if writer is None:
        return False
    if writer["machine"] == machine():
        return not _is_running(int(writer["pid"]))
    try:
        return now - path.lstat().st_mtime > ABANDONED_S
    except OSError:  # gone meanwhile
        return False


@cache
def machine() -> str:
    """Return eight digits for the boot and the process namespace: where they agree, process numbers mean the same."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return hashlib.sha256(f"{boot} {Path('/proc/self/ns/pid').readlink()}".encode()).hexdigest()[:8]
    except OSError:
        return secrets.token_hex(4)


def sync_folder(path: Path) -> None:
    """Flush the names in a folder to disk, where the file system can."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # not every network file system can
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def blamed_on(path: Path, temporary: Path) -> Iterator[None]:
    """Let a problem of the system inside the block name `path`: a full disk names no file, others the temporary one."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and str(error.filename or temporary).startswith(str(temporary)):
            error.filename, error.filename2 = str(path), None
        raise


def _exchange(left: Path, right: Path) -> bool:
    """Swap what two names stand for in one step; return False where the system or the file system cannot."""
    try:
        swap = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError):  # not Linux
        return False
    return bool(swap(_HERE, os.fsencode(left), _HERE, os.fsencode(right), ctypes.c_uint(_EXCHANGE)) == 0)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        return True
    return True
