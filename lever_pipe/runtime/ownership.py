"""File locks, and their use to have one writer per artifact.

After a workflow was killed and started again, or a lost node came back, a job of the former run may still compute an
artifact that a job of the current run begins. The first job locks a file next to the manifest and writes its name to
it. The other waits, and ends if the artifact is complete then. Locks are of `flock`: the kernel releases them when
their process ends in any way; a network file system does so when it gives up on the owner's machine.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from lever_pipe.base import atomic
from lever_pipe.base.records import Row

log = logging.getLogger(__name__)

UNKNOWN_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP)
"""Errors of a file system without such locks."""
SUFFIX = ".owner"
POLL_SECONDS = 1.0
LOG_SECONDS = 60.0
"""Seconds between polls of a waiting process (`POLL_SECONDS`), and between lines of its log (`LOG_SECONDS`)."""


class Owner(Row):
    """The process that makes an artifact, as recorded in its lock; `job` is the SLURM job id, or empty."""

    host: str
    pid: int
    job: str
    since: str

    def __str__(self) -> str:
        """Return the owner for messages to a waiting user."""
        job = f", SLURM job {self.job}" if self.job else ""
        return f"host {self.host}, process {self.pid}{job}, since {self.since}"


def this_process() -> Owner:
    """Return this process as an owner."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return Owner(host=socket.gethostname(), pid=os.getpid(), job=os.environ.get("SLURM_JOB_ID", ""), since=since)


def try_lock(path: Path) -> IO[str] | None:
    """Open and lock a file; the lock lasts until it is closed. Return None if another process has the lock.

    Raises:
        OSError: the file system has no locks.
    """
    handle = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        handle.close()
        if error.errno in (errno.EWOULDBLOCK, errno.ESTALE):  # ESTALE: removed on NFS by its owner after `open`
            return None
        raise
    return handle


def lock_of(manifest: Path) -> Path:
    """Return the path of the lock of a manifest's artifact."""
    return manifest.with_name(f".{manifest.name}{SUFFIX}")


def owner_of(manifest: Path) -> Owner | None:
    """Return the process in an artifact's lock, which makes it or was killed before the end; None without a lock."""
    return _owner_in(lock_of(manifest))


def sweep(results: Path) -> None:
    """Remove locks of killed processes, and abandoned temporary files of this machine.

    A job that runs again removes them itself, but not one that is skipped or restored from the store.
    """
    for path in results.rglob(".*"):
        if path.name.endswith(SUFFIX):
            free = _locked(path)
            if free is not None:
                with free:
                    path.unlink()
        elif atomic.is_abandoned(path, 0.0):  # False for files of other machines
            atomic.remove(path)


@contextmanager
def owned(manifest: Path) -> Iterator[bool]:
    """Lock the artifact of a manifest during the block; first wait until no other process has the lock.

    Yields:
        Whether there was another owner, which may have made the artifact.
    """
    lock = lock_of(manifest)
    lock.parent.mkdir(parents=True, exist_ok=True)
    handle, waited = _acquired(lock)
    with handle:
        try:
            handle.write(this_process().model_dump_json())
            handle.flush()
            yield waited
        finally:
            # Unlink before unlock: a process that has the file open detects that it is no longer the lock (`_locked`).
            lock.unlink(missing_ok=True)


def _acquired(lock: Path) -> tuple[IO[str], bool]:
    """Wait for the lock; return it, empty, and whether it had another owner."""
    waited, logged = False, -LOG_SECONDS  # negative, so that the first poll writes a line
    while (handle := _locked(lock)) is None:
        waited = True
        if time.monotonic() - logged >= LOG_SECONDS:
            logged = time.monotonic()
            log.info("%s is being made by another job: %s; waiting", lock.parent, _owner_in(lock) or "unknown")
        time.sleep(POLL_SECONDS)
    former = _owner_named_in(handle)
    handle.truncate(0)
    return handle, waited or former is not None


def _locked(lock: Path) -> IO[str] | None:
    """Open and lock a lock file; return None if another process has it or has just removed it."""
    try:
        handle = try_lock(lock)
    except OSError as error:
        if error.errno not in UNKNOWN_LOCKS:
            raise
        log.warning("%s: this file system has no locks: %s. Run no second job that makes this", lock, error.strerror)
        handle = lock.open("a+", encoding="utf-8")
    if handle is None:
        return None
    with suppress(FileNotFoundError):
        state = os.fstat(handle.fileno())  # current also on a network file system, because locking refreshes its cache
        if state.st_nlink and os.path.samestat(state, lock.stat()):
            return handle
    handle.close()  # its owner has removed it between the two calls
    return None


def _owner_in(lock: Path) -> Owner | None:
    with suppress(FileNotFoundError), lock.open(encoding="utf-8") as handle:
        return _owner_named_in(handle)
    return None


def _owner_named_in(handle: IO[str]) -> Owner | None:
    """Read the owner from a lock; return None if it is still empty, or written by another version."""
    handle.seek(0)
    try:
        return Owner.model_validate_json(handle.read())
    except ValidationError:
        return None
