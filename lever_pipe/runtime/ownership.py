"""One writer an artefact, also where two jobs for it run at once.

After a workflow was killed and started again, or a lost node came back, a job of the former run may still compute what
a job of the present one begins. The first holds a lock beside the run card; the other waits, and leaves if the artefact
is whole by then. The lock is a file that names its owner and whose modification time is its heartbeat. It appears with
its whole content by a hard link, which fails where the name is taken, on network file systems too. Ages are differences
of two times that the file system itself gave, so that clocks of machines do not matter.

An owner that was stopped for longer than `Times.limit_s` may be taken for dead. It ends itself as soon as it runs again
and finds the lock in other hands: a lost job is made again, two writers spoil a file.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from lever_pipe.base import atomic
from lever_pipe.runtime.slurm import squeue

log = logging.getLogger(__name__)

HANDED = "LEVER_PIPE_OWNER"
"""Environment variable by which a process that becomes a launcher names its lock to the processes it starts."""
MAY_WRITE = frozenset(("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"))
"""States of a SLURM job whose processes may still write."""
LOST = 75  # EX_TEMPFAIL: the same call may succeed later
LINKS_UNKNOWN = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


class Times(NamedTuple):
    """How long things take, in seconds."""

    beat_s: float = 5.0
    """Between two heartbeats of an owner."""
    limit_s: float = 60.0
    """After this much silence an owner on another machine counts as dead."""
    poll_s: float = 1.0
    """Between two looks of a process that waits."""
    ask_s: float = 30.0
    """Between two looks where SLURM must be asked."""
    say_s: float = 60.0
    """Between two lines of the log of a process that waits."""
    launch_s: float = 300.0
    """A launcher starts its processes within this time; nobody sends heartbeats meanwhile."""


TIMES = Times()


class Owner(BaseModel):
    """The process that makes an artefact, as its lock names it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str
    machine: str
    """See `atomic.machine`: where two are equal, process numbers mean the same."""
    pid: int
    started: str
    """When the process started, in ticks since boot: a number that is used again is not the same process."""
    job: str
    """SLURM's job number, or nothing."""
    since: str
    token: str
    """Name of the temporary file that became the lock; no other has it."""

    def __str__(self) -> str:
        """Return what a waiting user must know."""
        job = f", SLURM job {self.job}" if self.job else ""
        return f"host {self.host}, process {self.pid}{job}, since {self.since}"

    def is_running(self) -> bool | None:
        """Return whether this process lives; None where that cannot be told from here."""
        if self.machine != atomic.machine():
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # of another user, whose processes may be hidden
            if not process_start(self.pid):
                return None
        return process_start(self.pid) == self.started if self.started else None


class _Lock(NamedTuple):
    """A lock file as it was read."""

    text: str
    beat: float
    owner: Owner | None  # None: another version wrote it, or is about to


def this_process() -> Owner:
    """Return this process as an owner, with a token that no other call returns."""
    return Owner(
        host=socket.gethostname(),
        machine=atomic.machine(),
        pid=os.getpid(),
        started=process_start(os.getpid()),
        job=os.environ.get("SLURM_JOB_ID", ""),
        since=datetime.now(UTC).isoformat(timespec="seconds"),
        token=atomic.temporary_in(Path()).name,
    )


def lock_of(card: Path) -> Path:
    """Return the lock of the artefact that a run card belongs to."""
    return card.with_name(f".{card.name}.owner")


def owner_of(card: Path) -> Owner | None:
    """Return who makes an artefact at this moment, as its lock says; None without one."""
    lock = _read(lock_of(card))
    return lock.owner if lock else None


def sweep(results: Path) -> None:
    """Remove what killed processes of this machine left: their locks and temporary files.

    A job that is made again removes both itself; one that comes from the store, or is whole, does not.
    """
    # The second locks first: who takes a lock over waits for one that nobody holds.
    for path in sorted(results.rglob(".*"), key=lambda path: not path.name.endswith(".heir")):
        if path.name.endswith((".owner", ".heir")):
            lock = _read(path)
            if lock and lock.owner and lock.owner.is_running() is False:
                if path.name.endswith(".owner"):
                    with owned(path.with_name(path.name.removeprefix(".").removesuffix(".owner"))):
                        pass
                else:
                    atomic.remove(path)
        elif atomic.is_abandoned(path, 0.0):  # those of other machines have time
            atomic.remove(path)


@contextmanager
def owned(card: Path, *, times: Times | None = None, lost: Callable[[str], object] | None = None) -> Iterator[Hold]:
    """Own an artefact for the time of the block; wait before it as long as another process does.

    Args:
        card: the run card of the artefact.
        times: how long things take; None: `TIMES`.
        lost: hears why, from another thread, if the lock was taken away; None ends the process.
    """
    lock = lock_of(card)
    lock.parent.mkdir(parents=True, exist_ok=True)
    hold = Hold(lock, this_process(), times or TIMES, lost or _end)
    try:
        hold.acquire()
        hold.start()
        yield hold
    finally:
        hold.release()


@contextmanager
def adopted(*, times: Times | None = None, lost: Callable[[str], object] | None = None) -> Iterator[Hold | None]:
    """Keep the lock that this process's launcher holds alive for the time of the block, then release it.

    All processes of the launcher end with it, or they would write on for ever under a lock whose owner is dead. Only
    the first of them looks after the lock. Without a handed lock there is nothing to do.
    """
    handed = os.environ.pop(HANDED, "")
    if handed:
        _die_with_parent()
    if not handed or os.environ.get("RANK", "0") != "0":
        yield None
        return
    token, _, path = handed.partition(":")
    lock = _read(Path(path))
    owner = lock.owner if lock else None
    if owner is None or owner.token != token:
        (lost or _end)(f"{path}: expected the lock of this process's launcher; found {owner or 'none'}")
        yield None
        return
    hold = Hold(Path(path), owner, times or TIMES, lost or _end)
    try:
        hold.start()
        yield hold
    finally:
        hold.release()


class Hold:
    """This process's hold on a lock, or its wait for one.

    Attributes:
        waited: whether another owner was met.
    """

    def __init__(self, lock: Path, owner: Owner, times: Times, lost: Callable[[str], object]) -> None:
        self.waited = False
        self._lock = lock
        self._owner = owner
        self._times = times
        self._lost = lost
        self._own = lock.with_name(owner.token)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        """Return when the lock is this process's."""
        self._own.write_text(self._owner.model_dump_json(), encoding="utf-8")
        atomic.sweep(self._own)
        said = -self._times.say_s
        while not self._take():
            lock = _read(self._lock)
            if lock is None or self._is_own(lock):
                time.sleep(self._times.poll_s / 100)
                continue
            self.waited = True
            if not self._may_write(lock):
                if self._take_over(lock):
                    return
                time.sleep(self._times.poll_s / 10)
                continue
            if time.monotonic() - said >= self._times.say_s:
                said = time.monotonic()
                log.info("%s is being made by another job: %s; waiting", self._lock.parent, lock.owner or "unknown")
            is_near = lock.owner is not None and lock.owner.machine == self._owner.machine
            time.sleep(self._times.ask_s if not is_near and self._is_silent(lock) else self._times.poll_s)
        self._own.unlink()

    def start(self) -> None:
        """Send heartbeats from now on."""
        self._thread = threading.Thread(target=self._beat, name="ownership", daemon=True)
        self._thread.start()

    @contextmanager
    def handed_over(self) -> Iterator[None]:
        """Leave the lock to the processes of the launcher that this process becomes inside the block."""
        self._stop_beating()
        os.environ[HANDED] = f"{self._owner.token}:{self._lock.absolute()}"
        ahead = _touched(self._lock) + self._times.launch_s
        os.utime(self._lock, (ahead, ahead))
        try:
            yield
        finally:  # comes here only where there is no launcher
            del os.environ[HANDED]

    def release(self) -> None:
        """Give the lock back, if it is this process's."""
        self._stop_beating()
        self._own.unlink(missing_ok=True)
        lock = _read(self._lock)
        if lock is not None and self._is_own(lock):
            self._lock.unlink(missing_ok=True)

    def _take(self) -> bool:
        """Return whether the lock is this process's; try to make it so."""
        _touched(self._own)  # the heartbeat begins with the hold, not with the wait
        with suppress(FileExistsError):
            _link(self._own, self._lock)
        lock = _read(self._lock)  # a network file system may have linked, and lost the answer
        return lock is not None and self._is_own(lock)

    def _is_own(self, lock: _Lock) -> bool:
        return lock.owner is not None and lock.owner.token == self._owner.token

    def _may_write(self, lock: _Lock) -> bool:
        """Return whether a lock's owner must be taken to live."""
        owner = lock.owner
        running = owner.is_running() if owner else None
        if running is not None or not self._is_silent(lock):
            return running is not False
        # A job that SLURM put back into its queue has the number of its former life, and is this one.
        return bool(owner and owner.job and owner.job != self._owner.job and squeue.state_of(owner.job) in MAY_WRITE)

    def _is_silent(self, lock: _Lock) -> bool:
        return _touched(self._own) - lock.beat > self._times.limit_s

    def _take_over(self, judged: _Lock) -> bool:
        """Put this process's lock in the place of a dead owner's; return whether that was possible.

        Of several processes that judged the same lock one does so: it holds a second lock meanwhile, and looks again.
        A second lock whose holder was killed within these few operations is removed when it is old.
        """
        second = self._lock.with_name(f"{self._lock.name}.heir")
        _touched(self._own)  # asking SLURM took its time
        try:
            _link(self._own, second)
        except FileExistsError:
            left = _read(second)
            if left is not None and self._is_silent(left):
                second.unlink(missing_ok=True)
            return False
        try:
            if _read(self._lock) != judged:
                return False
            self._own.replace(self._lock)
        finally:
            second.unlink(missing_ok=True)
        log.info("%s: its owner is gone (%s); taken over", self._lock, judged.owner or "unknown")
        return True

    def _beat(self) -> None:
        while not self._stop.wait(self._times.beat_s):
            try:
                found = self._refresh()
            except OSError as fault:  # who cannot reach the folder writes no file into it; the next beat looks again
                log.warning("%s: no heartbeat: %s", self._lock, fault)
                continue
            if found is not None:
                self._lost(f"{self._lock}: expected to own it ({self._owner}); found {found}")
                return

    def _refresh(self) -> str | None:
        """Send one heartbeat; return who has the lock, if it is another."""
        lock = _read(self._lock)
        if lock is None:  # deleted by hand: nobody's
            with suppress(FileNotFoundError):
                self._own.write_text(self._owner.model_dump_json(), encoding="utf-8")
                self._take()
                self._own.unlink()
            lock = _read(self._lock)
        if lock is None or not self._is_own(lock):
            return f"the lock of {lock.owner or 'another'}" if lock else "no folder"
        with suppress(FileNotFoundError):
            os.utime(self._lock)
        return None

    def _stop_beating(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()


def process_start(pid: int) -> str:
    """Return when a process started, in ticks since boot; nothing if there is none, or no way to know."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[19]  # a zombie writes nothing any more


def _read(path: Path) -> _Lock | None:
    """Return a lock, or None if there is none. Opening it makes a network file system ask for its present state."""
    try:
        with path.open(encoding="utf-8") as handle:
            text, beat = handle.read(), os.fstat(handle.fileno()).st_mtime
    except FileNotFoundError:
        return None
    except OSError as fault:
        if fault.errno == errno.ESTALE:  # removed by another machine
            return None
        raise
    try:
        return _Lock(text, beat, Owner.model_validate_json(text))
    except ValidationError:
        return _Lock(text, beat, None)


def _link(source: Path, target: Path) -> None:
    """Give a file a second name.

    Raises:
        FileExistsError: the name is taken.
    """
    try:
        os.link(source, target)
    except OSError as fault:
        if fault.errno not in LINKS_UNKNOWN:
            raise
        with target.open("x", encoding="utf-8") as handle:  # whole a moment later; half of it has no owner but is young
            handle.write(source.read_text(encoding="utf-8"))


def _touched(path: Path) -> float:
    """Set a file's time to the file system's present and return that."""
    os.utime(path)
    with path.open(encoding="utf-8") as handle:
        return os.fstat(handle.fileno()).st_mtime


def _die_with_parent() -> None:
    import ctypes

    parent = os.getppid()
    with suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(LOST)


def _end(reason: str) -> None:
    message = f"lever_pipe.runtime.ownership: {reason}. This process ends; whoever has the lock makes the artefact.\n"
    os.write(2, message.encode())  # no buffer and no lock that the stopped work may hold
    os._exit(LOST)
