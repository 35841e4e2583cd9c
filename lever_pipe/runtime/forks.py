"""Run the jobs of one machine as forks of a server process with preloaded modules.

Starting Python and importing torch and transformers takes longer than most jobs compute. So a server imports them once,
computes nothing, and forks a child for each call of `python -m lever_pipe stage`. The child has the environment,
working directory, log file, signals and exit status of a fresh process, its stage as its name, and no state of an
earlier job.
`snakemake_executor_plugin_local` uses these servers.

The libraries fix their CPU instructions and number of threads at import. So a server starts with the environment of its
jobs, and serves jobs with the same number of threads. The client has the other end of a socket; when that closes for
any reason, the server ends. When the server ends or dies, its children get SIGTERM.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

from lever_pipe.base import plugins
from lever_pipe.base.process_environment import TEMPORARY, THREADS
from lever_pipe.experiment import manifests
from lever_pipe.runtime import stage_call

CALL = ["python", "-m", "lever_pipe", "stage"]
PARENT_DEATH_SIGNAL, NAME = 1, 15  # PR_SET_PDEATHSIG and PR_SET_NAME of prctl(2)
FROM_JOB = 3
"""Number of the job of a kind that starts its server: the imports take as long as a few short jobs."""
HANDLED = (signal.SIGINT, signal.SIGTERM)

Children = dict[int, tuple[int, int]]
"""Descriptor of a process -> number of its job, process id."""


def call_in(command: str) -> tuple[list[str], str] | None:
    """Return WORDS and LOG of a shell command `python -m lever_pipe stage WORDS > LOG 2>&1`.

    Return None for any other command, or if a shell could interpret it differently.
    """
    plain = command.strip()
    text, separator, log = plain.removesuffix(" 2>&1").rpartition(" > ")
    try:
        words, logs = shlex.split(text), shlex.split(log)
    except ValueError:
        return None
    rebuilt = f"{shlex.join(words)} > {shlex.join(logs)} 2>&1"  # differs if there are variables, globs or pipes
    if not separator or len(logs) != 1 or words[: len(CALL)] != CALL or rebuilt != plain:
        return None
    return words[len(CALL) :], logs[0]


def environment_of(job: Any) -> dict[str, str]:
    """Return the same environment that Snakemake's `shell` sets for a job's command."""
    folder = job.resources.get("tmpdir")
    temporary = dict.fromkeys(TEMPORARY, str(folder)) if folder else {}
    return {**os.environ, **dict.fromkeys(THREADS, str(job.threads)), **temporary}


@cache
def _is_this_python(path: str) -> bool:
    """Return whether `python` in this search path is the interpreter of this process."""
    python = shutil.which(CALL[0], path=path)
    return python is not None and Path(python).resolve() == Path(sys.executable).resolve()


class Forks:
    """A fork server, from the view of its client.

    Args:
        modules: modules that the server imports.
        environment: environment of the server; jobs must have the same variables that libraries read at import.
    """

    def __init__(self, modules: Iterable[str], environment: Mapping[str, str]) -> None:
        self._channel, far_end = socket.socketpair()
        with far_end:
            command = [sys.executable, "-m", __name__, str(far_end.fileno()), *modules]
            self._server = subprocess.Popen(command, pass_fds=[far_end.fileno()], env=dict(environment))
        self._ready = threading.Event()
        self._lock = threading.Lock()
        self._numbers = count()
        self._jobs: dict[int, Future[int]] = {}
        self._gone = False
        self._listener = threading.Thread(target=self._listen, name="forks", daemon=True)
        self._listener.start()

    @property
    def ready(self) -> bool:
        """Whether the server is alive and has imported all modules."""
        return self._ready.is_set() and not self._gone

    def until_ready(self, timeout: float) -> bool:
        """Wait for the server up to `timeout` seconds, and return whether it is ready."""
        return self._ready.wait(timeout) and self.ready

    def start(self, words: Sequence[str], *, log: str, environment: Mapping[str, str]) -> Future[int]:
        """Fork `python -m lever_pipe stage WORDS > LOG 2>&1`; return a future exit status, negative for a signal."""
        number, status = next(self._numbers), Future[int]()
        order = {"number": number, "words": list(words), "log": log, "environment": dict(environment)}
        with self._lock:
            if self._gone:
                status.set_result(-signal.SIGKILL)  # the same status as for the server's lost children
                return status
            self._jobs[number] = status
            _send(self._channel, {**order, "folder": str(Path.cwd())})
        return status

    def close(self) -> None:
        """End the server and its children."""
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_WR)
        self._server.wait()
        self._listener.join()
        self._channel.close()

    def _listen(self) -> None:
        with suppress(OSError), self._channel.makefile("rb") as lines:
            for message in map(json.loads, lines):
                if "ready" in message:
                    self._ready.set()
                else:
                    with self._lock:
                        status = self._jobs.pop(message["number"])
                    status.set_result(message["status"])
        with self._lock:
            self._gone, left = True, list(self._jobs.values())
            self._jobs.clear()
        self._ready.set()  # wakes `until_ready`, which then returns False
        for status in left:
            status.set_result(-signal.SIGKILL)


def serve(channel: socket.socket, modules: Iterable[str]) -> None:
    """Import modules, then fork a child for each line from the channel, until it closes."""
    for number in HANDLED:  # Ctrl-C also reaches the children, in the same process group; the server reports their ends
        signal.signal(number, signal.SIG_IGN)
    for module in modules:
        plugins.load(module)
    manifests.surroundings()
    gc.collect()
    gc.freeze()  # the collector must not touch inherited objects, which would copy their memory pages in each child
    _send(channel, {"ready": True})
    children: Children = {}
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        unread = b""
        while True:
            for key, _ in selector.select():
                if key.fileobj is not channel:
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    job, pid = children.pop(key.fd)
                    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    _send(channel, {"number": job, "status": status})
                    continue
                received = channel.recv(1 << 16)
                if not received:  # the client has ended; when this process ends, its children get SIGTERM
                    return
                *lines, unread = (unread + received).split(b"\n")  # an order may arrive in parts
                for order in map(json.loads, lines):
                    _fork(channel, selector, children, order)


def _fork(
    channel: socket.socket,
    selector: selectors.BaseSelector,
    children: Children,
    order: dict[str, Any],
) -> None:
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become_job(server, [channel.fileno(), *children], order)
    descriptor = os.pidfd_open(pid)  # readable at the child's end, so one selector waits for children and orders
    children[descriptor] = order["number"], pid
    selector.register(descriptor, selectors.EVENT_READ)


def _become_job(server: int, descriptors: Iterable[int], order: dict[str, Any]) -> NoReturn:
    """Run a job in a child like a fresh `python -m lever_pipe stage`, and exit."""
    status = 1
    try:
        # First: the child inherits ignored signals, but must receive SIGTERM when the server dies.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        die_with(server, signal.SIGTERM)
        ctypes.CDLL(None).prctl(NAME, "".join(order["words"][:1]).encode())  # shown by `top`; 15 bytes at most
        for descriptor in descriptors:
            os.close(descriptor)
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environment"])
        _write_to(order["log"])
        sys.argv = [sys.argv[0], *order["words"]]
        status = stage_call.main(order["words"])
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        sys.stderr.write("KeyboardInterrupt: ended before it began\n")
        status = 128 + signal.SIGINT
    except BaseException:  # noqa: BLE001 - a fresh process's interpreter would print it, too
        traceback.print_exc()
    finally:
        for flush in (sys.stdout.flush, sys.stderr.flush):
            with suppress(OSError):  # a log on a full disk
                flush()
        os._exit(status)  # not sys.exit, which would unwind through the server's code


def die_with(parent: int, number: signal.Signals) -> None:
    """Make the kernel send this process a signal when its parent ends; exit if the parent has ended already."""
    with suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, int(number))
    if os.getppid() != parent:  # it ended before prctl, so no signal will come
        os._exit(1)


def _write_to(log: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=False)  # type: ignore[union-attr]


def _send(channel: socket.socket, message: Mapping[str, Any]) -> None:
    with suppress(OSError):  # the other end is closed; the next read from the channel detects this
        channel.sendall(json.dumps(message).encode() + b"\n")


_modules: list[str] = []
_servers: dict[str, Forks] = {}
_requests: Counter[str] = Counter()


def fork_calls(modules: Iterable[str]) -> None:
    """Make the local executor of this process start calls of the package as forks of servers with these modules.

    Snakemake creates the executor before any job is planned, so the executor reads the modules from here. Only
    `invocation.Run.begin` sets them.
    """
    _modules[:] = modules
    atexit.register(close)


def server_for(environment: Mapping[str, str]) -> Forks | None:
    """Return the fork server for a job's environment; None if the job must start as a separate command.

    There is one server for each number of threads. It is not used for the first jobs of its kind, and until it is
    ready.
    """
    threads = environment.get(THREADS[0], "")
    _requests[threads] += 1
    if not _modules or _requests[threads] < FROM_JOB or not _is_this_python(environment.get("PATH", "")):
        return None
    if threads not in _servers:
        _servers[threads] = Forks(_modules, environment)
    return _servers[threads] if _servers[threads].ready else None


def close() -> None:
    """End all servers and their children."""
    for server in _servers.values():
        server.close()
    _servers.clear()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
