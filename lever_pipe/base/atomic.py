"""Write files and folders atomically, and remove the leftovers of killed writers.

Each file is written under a hidden temporary name in the folder of its final name, flushed to disk and renamed. The
temporary name contains the machine and the process of its writer: `.MACHINE.PROCESS.RANDOM.tmp`. The next writer in the
folder can thus detect abandoned files: those of its own machine by the process, those of other machines by age.
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
"""Age in seconds at which a temporary file of another machine counts as abandoned; its process cannot be checked."""

_NAME = re.compile(r"\.(?P<machine>[0-9a-z]+)\.(?P<pid>[1-9][0-9]{0,9})\.[0-9a-f]{8}\.tmp")
_HERE = -100  # AT_FDCWD
_EXCHANGE = 2  # RENAME_EXCHANGE


def write_file(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Let `write` fill a temporary file, then rename it to `path`.

    After a kill or a power failure, `path` is the former file, the complete new file or missing, but never partial.
    When this function returns, the name is on disk too: a file that is written last proves that all is complete.

    Raises:
        OSError: the system refuses; the error names `path`, which is unchanged.
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
    """Let `write` fill a temporary folder, then rename it to `path`.

    After a kill or a power failure, `path` is the former folder or the complete new one, never partial; files of the
    former folder do not survive in the new one. On file systems that cannot exchange two names, such as NFS, both may
    be missing.

    Raises:
        OSError: the system refuses; the error names `path`, which is unchanged.
    """
    with _replacing(path) as temporary:
        temporary.mkdir()
        sweep(temporary)
        write(temporary)
        # Contents reach the disk before the name does: after a power failure no final name points to empty files.
        for parent, _, names in os.walk(temporary):
            for name in names:
                with (Path(parent) / name).open("rb") as handle:
                    os.fsync(handle.fileno())
        place(temporary, path)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to a path; afterwards remove whatever still has that name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_in(path.parent)
    with blamed_on(path, temporary):
        try:
            yield temporary
        finally:
            remove(temporary)


def write_texts(path: Path, texts: Mapping[str, str]) -> None:
    """Write a folder of UTF-8 texts by their relative paths, as `write_folder` does."""

    def write(folder: Path) -> None:
        for name, text in texts.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            # An empty `newline` keeps line ends as they are, so that bytes do not depend on the system.
            (folder / name).write_text(text, encoding="utf-8", newline="")

    write_folder(path, write)


@contextmanager
def folder_in(parent: Path) -> Iterator[Path]:
    """Yield an empty temporary folder, and remove it with its contents afterwards."""
    parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_in(parent)
    try:
        temporary.mkdir()
        yield temporary
    finally:
        remove(temporary)


def temporary_in(folder: Path) -> Path:
    """Return a path in a folder that no process on any machine uses yet."""
    return folder / f".{machine()}.{os.getpid()}.{secrets.token_hex(4)}.tmp"


def place(temporary: Path, path: Path) -> None:
    """Rename a file or folder to its final name, durably; replace a former one as a whole, and a link itself."""
    is_folder = temporary.is_dir()
    if is_folder:
        for parent, _, _ in os.walk(temporary):
            sync_folder(Path(parent))
    if not os.path.lexists(path):
        temporary.rename(path)
    # `replace` cannot put a file over a folder, nor a folder over a full one: these need an exchange.
    elif not is_folder and (path.is_symlink() or not path.is_dir()):
        temporary.replace(path)
    elif not _exchange(temporary, path):
        # Until the second rename nothing has the name `path`; a crash here keeps the data under temporary names.
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
    """Rename a folder, then delete it, so that readers never find a part of it under its name.

    Network file systems keep deleted files that are still mapped; `sweep` removes such leftovers later.
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
    """Remove the leftovers of killed writers in the folder of `own`.

    If such a writer is still alive, its own rename fails, because the source is gone.

    Args:
        own: the temporary file or folder that this process has just created. Its time is the file system's current
            time, independent of the clocks of machines.
    """
    with suppress(OSError):  # failed clean-up must not block the write
        now = own.stat().st_mtime
        with os.scandir(own.parent) as entries:
            left = [Path(entry.path) for entry in entries if entry.name != own.name]
        for path in left:
            if is_abandoned(path, now):
                remove(path)


def is_abandoned(path: Path, now: float) -> bool:
    """Return whether a path is a temporary one whose writer has ended; `now` is the file system's time in seconds."""
    writer = _NAME.fullmatch(path.name)
    if writer is None:
        return False
    if writer["machine"] == machine():
        return not _is_running(int(writer["pid"]))
    try:
        return now - path.lstat().st_mtime > ABANDONED_S
    except OSError:  # removed by another process
        return False


@cache
def machine() -> str:
    """Return eight hexadecimal digits of the boot and the PID namespace: if equal, process ids are comparable."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return hashlib.sha256(f"{boot} {Path('/proc/self/ns/pid').readlink()}".encode()).hexdigest()[:8]
    except OSError:
        # Unknown machine: random digits match no other writer, so that only age counts.
        return secrets.token_hex(4)


def sync_folder(path: Path) -> None:
    """Flush the names in a folder to disk, if the file system supports that."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems refuse
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def blamed_on(path: Path, temporary: Path) -> Iterator[None]:
    """Make OSErrors inside the block name `path`: those of a full disk name no file, others the temporary one."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and str(error.filename or temporary).startswith(str(temporary)):
            error.filename, error.filename2 = str(path), None
        raise


def _exchange(left: Path, right: Path) -> bool:
    """Exchange two names in one step; return False where the system or the file system cannot."""
    try:
        swap = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError):  # not Linux
        return False
    return bool(swap(_HERE, os.fsencode(left), _HERE, os.fsencode(right), ctypes.c_uint(_EXCHANGE)) == 0)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # signal 0 sends nothing, it only checks for the process
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # a process of another user
        return True
    return True
