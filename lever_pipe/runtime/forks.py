"""Jobs of one machine as forks of a process that has imported what they need.

Starting Python and importing torch and transformers takes longer than most jobs compute. So a server imports them once,
computes nothing, and forks a child for each call of `python -m lever_pipe`. The child has the environment, working
directory, log file, signals and exit status that a fresh process would have, its stage as its name, and nothing of an
earlier job.

What instructions and how many threads the libraries take is fixed when they are imported: a server is started with the
environment of its jobs, and serves those of equal threads. Whoever asks holds the other end of a socket; when that
closes, for whatever reason, the server ends its children and itself. When the server dies, so do its children.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

from lever_pipe.base import members
from lever_pipe.experiment import run_card

GRACE_SECONDS = 10.0
"""How long children may take to end after SIGTERM, before SIGKILL."""
PARENT_DEATH_SIGNAL, NAME = 1, 15  # PR_SET_PDEATHSIG and PR_SET_NAME of prctl(2)
FROM_JOB = 3
"""Which job of a kind starts its server."""
HANDLED = (signal.SIGINT, signal.SIGTERM)

Children = dict[int, tuple[int, int]]
"""Descriptor of a process -> the number of its job, its process number."""


class ForkedJob:
    """A forked child, as far as whoever started it needs a `subprocess.Popen`.

    Args:
        on_seen: called when the exit status is first read; until then the child's process number is its own.

    Attributes:
        started: the child's process number; 0 where the server ended before it had one.
        ended: the exit status, as of `Popen`.
    """

    stdout = None

    def __init__(self, on_seen: Callable[[], None]) -> None:
        self.started: Future[int] = Future()
        self.ended: Future[int] = Future()
        self._on_seen = cache(on_seen)

    @property
    def pid(self) -> int:
        """Return the child's process number, once it has one."""
        return self.started.result()

    @property
    def returncode(self) -> int | None:
        """Return the exit status, None while the child runs."""
        return self.ended.result() if self.ended.done() else None

    def poll(self) -> int | None:
        """Return the exit status, None while the child runs."""
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> int | None:
        """Return the exit status when the child has ended, None if it runs after some seconds."""
        with suppress(TimeoutError):
            status = self.ended.result(timeout)
            self._on_seen()
            return status
        return None

    def send_signal(self, number: int) -> None:
        """Send a signal if the child still runs."""
        if self.returncode is None and self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Forks:
    """A server, seen by the process that wants jobs.

    Args:
        modules: what the server imports.
        environment: of the server, and in what libraries read when they are imported, of each job.
    """

    def __init__(self, modules: Iterable[str], environment: Mapping[str, str]) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno()), *modules]
            self._server = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=dict(environment))
        self._ready = threading.Event()
        self._lock = threading.Lock()
        self._numbers = count()
        self._jobs: dict[int, ForkedJob] = {}
        self._gone = False
        self._listener = threading.Thread(target=self._listen, name="forks", daemon=True)
        self._listener.start()

    @property
    def ready(self) -> bool:
        """Whether the server has imported everything and lives."""
        return self._ready.is_set() and not self._gone

    def until_ready(self, timeout: float) -> bool:
        """Return whether the server is ready within some seconds."""
        return self._ready.wait(timeout) and self.ready

    def start(self, words: Sequence[str], *, log: str, environment: Mapping[str, str]) -> ForkedJob | None:
        """Fork `python -m lever_pipe WORDS > LOG 2>&1` and return it; None where the server is gone or not ready."""
        number = next(self._numbers)
        job = ForkedJob(partial(self._see, number))
        asked = {"number": number, "words": list(words), "log": log, "environment": dict(environment)}
        with self._lock:
            if not self.ready:
                return None
            self._jobs[number] = job
            try:
                _send(self._channel, {**asked, "folder": str(Path.cwd())})
            except OSError:
                return self._jobs.pop(number) and None
        job.started.result()
        return job

    def close(self) -> None:
        """End the server and what it has forked."""
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_WR)
        self._server.wait()
        self._listener.join()
        self._channel.close()

    def _see(self, number: int) -> None:
        with self._lock, suppress(OSError):  # a server that is gone has left its children to the kernel
            _send(self._channel, {"seen": number})

    def _listen(self) -> None:
        with suppress(OSError):
            for told in _lines(self._channel):
                self._hear(told)
        with self._lock:
            self._gone, left = True, list(self._jobs.values())
            self._jobs.clear()
        self._ready.set()
        for job in left:
            if not job.started.done():
                job.started.set_result(0)
            job.ended.set_result(-signal.SIGKILL)

    def _hear(self, told: dict[str, Any]) -> None:
        if "ready" in told:
            self._ready.set()
        elif "pid" in told:
            self._jobs[told["number"]].started.set_result(told["pid"])
        else:
            with self._lock:
                job = self._jobs.pop(told["number"])
            job.ended.set_result(told["status"])


def serve(channel: socket.socket, modules: Iterable[str]) -> None:
    """Import modules, then fork a child for each line that the channel brings, until it closes."""
    for number in HANDLED:  # Ctrl-C reaches the children, which are of the terminal's group too
        signal.signal(number, signal.SIG_IGN)
    for module in modules:
        members.load(module)
    run_card.surroundings()
    gc.collect()
    gc.freeze()
    _tell(channel, {"ready": True})
    children: Children = {}
    ended: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        unread = b""
        while True:
            for key, _ in selector.select():
                if key.fileobj is not channel:
                    job, pid = children.pop(key.fd)
                    ended[job] = pid
                    _tell_end(channel, selector, key.fd, job, pid)
                    continue
                received = channel.recv(1 << 16)
                if not received:
                    _end(children.values())
                    return
                *lines, unread = (unread + received).split(b"\n")
                for asked in map(json.loads, lines):
                    if "seen" in asked:
                        if pid := ended.pop(asked["seen"], 0):
                            os.waitpid(pid, 0)
                    else:
                        _fork(channel, selector, children, asked)


def _fork(
    channel: socket.socket,
    selector: selectors.BaseSelector,
    children: Children,
    asked: dict[str, Any],
) -> None:
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become_job(server, [channel.fileno(), *children], asked)
    descriptor = os.pidfd_open(pid)
    children[descriptor] = asked["number"], pid
    selector.register(descriptor, selectors.EVENT_READ)
    _tell(channel, {"number": asked["number"], "pid": pid})


def _tell_end(channel: socket.socket, selector: selectors.BaseSelector, descriptor: int, number: int, pid: int) -> None:
    selector.unregister(descriptor)
    os.close(descriptor)
    # Not reaped yet: until its end has been seen, no other process takes its number.
    end: Any = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    status = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
    _tell(channel, {"number": number, "status": status})


def _tell(channel: socket.socket, what: Mapping[str, Any]) -> None:
    with suppress(OSError):  # whoever asked is gone; the next look at the channel says so
        _send(channel, what)


def _end(children: Iterable[tuple[int, int]]) -> None:
    pids = [pid for _, pid in children]
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    for pid in pids:
        while not os.waitpid(pid, os.WNOHANG)[0]:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)


def _become_job(server: int, descriptors: Iterable[int], asked: dict[str, Any]) -> NoReturn:
    """Do in a child what a fresh `python -m lever_pipe` would do, and end."""
    status = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # first: the server ignores what a dying one sends
        signal.signal(signal.SIGINT, signal.default_int_handler)
        die_with(server, signal.SIGTERM)
        ctypes.CDLL(None).prctl(NAME, "".join(asked["words"][:1]).encode())  # what `top` shows of it, 15 bytes
        for descriptor in descriptors:
            os.close(descriptor)
        os.chdir(asked["folder"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        _write_to(asked["log"])
        sys.argv = [sys.argv[0], *asked["words"]]
        main = import_module("lever_pipe.__main__").main

        status = main(asked["words"])
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        sys.stderr.write("KeyboardInterrupt: ended before it began\n")
        status = 128 + signal.SIGINT
    except BaseException:  # noqa: BLE001 - this is where the interpreter would print it
        traceback.print_exc()
    finally:
        for flush in (sys.stdout.flush, sys.stderr.flush):
            with suppress(OSError):  # a log on a full disk
                flush()
        os._exit(status)


def die_with(parent: int, number: signal.Signals) -> None:
    """Let the kernel send this process a signal when its parent ends; end it if that has ended already."""
    with suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, int(number))
    if os.getppid() != parent:
        os._exit(1)


def _write_to(log: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=False)  # type: ignore[union-attr]


def _send(channel: socket.socket, what: Mapping[str, Any]) -> None:
    channel.sendall(json.dumps(what).encode() + b"\n")


def _lines(channel: socket.socket) -> Iterable[dict[str, Any]]:
    with channel.makefile("rb") as reader:
        for line in reader:
            yield json.loads(line)


class Servers:
    """Servers of equal modules, one for each number of threads, started when a third job of that kind comes.

    A server imports for as long as a few short jobs take, and a run that has no more of them is sooner without.

    Args:
        modules: what the servers import.
    """

    def __init__(self, modules: Iterable[str]) -> None:
        self._modules = list(modules)
        self._servers: dict[str, Forks] = {}
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()

    def start(self, words: Sequence[str], *, log: str, environment: Mapping[str, str]) -> ForkedJob | None:
        """Fork a call; None for the first ones of its kind, until its server is ready, and when it is gone."""
        threads = environment.get("OMP_NUM_THREADS", "")
        with self._lock:
            self._asked[threads] += 1
            if self._asked[threads] < FROM_JOB:
                return None
            if threads not in self._servers:
                self._servers[threads] = Forks(self._modules, environment)
        return self._servers[threads].start(words, log=log, environment=environment)

    def close(self) -> None:
        """End all servers and what they have forked."""
        with self._lock:
            for server in self._servers.values():
                server.close()
            self._servers.clear()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
