"""One lock for all: of a file, held as long as it is open; and one writer an artefact by it.

After a workflow was killed and started again, or a lost node came back, a job of the former run may still compute what
a job of the present one begins. The first locks a file beside the manifest, which names it; the other waits, and leaves
if the artefact is whole by then. The lock is one of `flock`: the kernel lets go of it however its owner ends, a network
file system when it gives the owner's machine up.
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
"""How a file system refuses that has no such locks."""
SUFFIX = ".owner"
POLL_S = 1.0
POLL_SECONDS = 60.0
"""Between two looks of a process that waits, and between two lines of its log."""


class Owner(Row):
    """The process that makes an artefact, as its lock names it; `job` is SLURM's number, or nothing."""

    host: str
    pid: int
    job: str
    since: str

    def __str__(self) -> str:
        """Return what a waiting user must know."""
        job = f", SLURM job {self.job}" if self.job else ""
        return f"host {self.host}, process {self.pid}{job}, since {self.since}"


def this_process() -> Owner:
    """Return this process as an owner."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return Owner(host=socket.gethostname(), pid=os.getpid(), job=os.environ.get("SLURM_JOB_ID", ""), since=since)


def try_lock(path: Path) -> IO[str] | None:
    """Return a file, locked as long as it is open; None where another process holds it.

    Raises:
        OSError: the file system has no locks.
    """
    handle = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        handle.close()
        if error.errno in (errno.EWOULDBLOCK, errno.ESTALE):
            return None
        raise
    return handle


def lock_of(manifest: Path) -> Path:
    """Return the lock of the artefact that a manifest belongs to."""
    return manifest.with_name(f".{manifest.name}{SUFFIX}")


def owner_of(manifest: Path) -> Owner | None:
    """Return who makes an artefact at this moment, or was killed at it, as its lock says; None without one."""
    return _owner_in(lock_of(manifest))


def sweep(results: Path) -> None:
    """Remove what killed processes left: their locks, and temporary files of this machine.

    A job that is made again removes both itself; one that comes from the store, or is whole, does not.
    """
    for path in results.rglob(".*"):
        if path.name.endswith(SUFFIX):
            free = _locked(path)
            if free is not None:
                with free:
                    path.unlink()
        elif atomic.is_abandoned(path, 0.0):  # those of other machines have time
            atomic.remove(path)


@contextmanager
def owned(manifest: Path) -> Iterator[bool]:
    """Own the artefact of a manifest for the time of the block; wait before it as long as another process does.

    Yields:
        Whether another owner was met, who may have made the artefact.
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
            lock.unlink(missing_ok=True)  # first: whoever has the file open sees that it is not the lock any more


def _acquired(lock: Path) -> tuple[IO[str], bool]:
    """Return the lock, empty and this process's, when nobody else has it, and whether anybody had."""
    waited, logged = False, -POLL_SECONDS
    while (handle := _locked(lock)) is None:
        waited = True
        if time.monotonic() - logged >= POLL_SECONDS:
            logged = time.monotonic()
            log.info("%s is being made by another job: %s; waiting", lock.parent, _owner_in(lock) or "unknown")
        time.sleep(POLL_S)
    former = _owner_named_in(handle)
    handle.truncate(0)
    return handle, waited or former is not None


def _locked(lock: Path) -> IO[str] | None:
    """Return a lock that nobody else holds, open; None for one that is another's, or went meanwhile."""
    try:
        handle = try_lock(lock)
    except OSError as error:
        if error.errno not in UNKNOWN_LOCKS:
            raise
        log.warning("%s: this file system has no locks: %s. Nobody else may make this now", lock, error.strerror)
        handle = lock.open("a+", encoding="utf-8")
    if handle is None:
        return None
    with suppress(FileNotFoundError):
        state = os.fstat(handle.fileno())  # taking a lock makes a network file system ask for the file's present state
        if state.st_nlink and os.path.samestat(state, lock.stat()):
            return handle
    handle.close()  # its owner has removed it between the two calls
    return None


def _owner_in(lock: Path) -> Owner | None:
    with suppress(FileNotFoundError), lock.open(encoding="utf-8") as handle:
        return _owner_named_in(handle)
    return None


def _owner_named_in(handle: IO[str]) -> Owner | None:
    """Return whom a lock names; None for one that is empty yet, or of another version."""
    handle.seek(0)
    try:
        return Owner.model_validate_json(handle.read())
    except ValidationError:
        return None
