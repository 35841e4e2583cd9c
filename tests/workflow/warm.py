"""Snakemake and our own tools as forks of processes that have imported what they need: what a test's command computes.

A command runs in a fork of a process that has imported `lever_pipe` of the folder, as its files are now. Its
jobs come from servers (`lever_pipe.runtime.forks`) that are forks themselves: of a process that has imported what jobs
import of libraries, on the numeric path and with the threads of the tests, and nothing of `lever_pipe`.
"""

from __future__ import annotations

import atexit
import gc
import json
import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib import import_module
from multiprocessing import connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

LIBRARIES = (
    "snakemake.cli",
    "snakemake.report.html_reporter",
    "snakemake_executor_plugin_slurm",
    "numpy",
    "pandas",
    "pydantic",
    "smart_open",
    "yaml",
    "yte",
)
"""Imports of a dry run next to `lever_pipe`; no module that a job computes with."""
PLANNING = ("invocation", "plan", "failures", "sizing", "checks.doctor")
"""What of `lever_pipe.runtime` the workflow imports."""
OF_JOBS = (
    *("torch", "scipy.stats", "matplotlib.backends.backend_agg", "jinja2", "safetensors.torch", "tokenizers"),
    *("transformers.models.qwen3.modeling_qwen3", "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl"),
)
THREADS = "OMP_NUM_THREADS"

codes: Path | None = None
"""Cache file: the first process that reads the code of all stages writes it for others with the same files."""

forking = multiprocessing.get_context("forkserver")
forking.set_forkserver_preload(list(LIBRARIES))
own = multiprocessing.get_context("fork")


def run(
    module: str, words: list[str], folder: Path, environment: Mapping[str, str], *, fresh: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run `python -m MODULE WORDS` in a folder; stdout contains its whole output.

    Args:
        fresh: whether its jobs start as a user's do: as fresh processes, and forks of a separate server.
    """
    package = [(path.stat().st_mtime_ns, str(path)) for path in sorted((folder / "lever_pipe").rglob("*.py"))]
    # With another number of threads libraries would have to be imported anew.
    # Only Linux names sockets without a file.
    as_here = environment.get(THREADS) == os.environ.get(THREADS) and sys.platform == "linux"
    with tempfile.NamedTemporaryFile() as output:
        commands = _commands(folder, tuple(package))
        lender = _lender()[0] if as_here and not fresh else None
        commands.send((module, words, dict(environment), output.name, lender))
        status = commands.recv()
        text = Path(output.name).read_text()
    return subprocess.CompletedProcess(words, status, text)


@lru_cache(maxsize=3)
def _commands(folder: Path, package: tuple[tuple[int, str], ...]) -> connection.Connection:
    """Return the connection to a server of commands for a folder whose package has these files."""
    ours, theirs = forking.Pipe()
    with theirs:
        forking.Process(target=_take_commands, args=(theirs, folder, codes)).start()
    return ours


def _take_commands(commands: connection.Connection, folder: Path, codes: Path | None) -> None:
    gc.disable()  # all of this lasts
    assert not {name for name in sys.modules if name.partition(".")[0] in ("lever_pipe", "torch")}
    sys.path.insert(0, str(folder))
    for name in PLANNING:
        import_module(f"lever_pipe.runtime.{name}")
    import_module("snakemake.cli").get_argument_parser()  # looks for plugins, once
    provenance: Any = import_module("lever_pipe.base.provenance")
    snapshot: Any = import_module("lever_pipe.runtime.snapshot")
    if codes is not None:
        snapshot.recall_codes(codes)
    if not snapshot._codes:
        for stage in provenance.stages():
            snapshot.code_of(stage, ())
        if codes is not None and not codes.exists():
            snapshot.remember_codes(codes)
    gc.freeze()  # garbage collection skips the imported objects, and does not copy their pages
    gc.enable()
    while True:
        try:
            requested = commands.recv()
        except EOFError:
            return
        process = own.Process(target=_become, args=(folder, *requested))
        process.start()
        process.join()
        commands.send(process.exitcode)


def _become(
    folder: Path, module: str, words: list[str], environment: dict[str, str], log: str, lender: bytes | None
) -> None:
    os.chdir(folder)
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.environ.clear()
    os.environ.update(environment)
    import_module("lever_pipe.base.numerics").choose()  # as it was imported in this environment
    if lender is not None:
        _borrow(lender)
    sys.argv = [sys.argv[0], *words]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:  # as at the end of an interpreter, which `multiprocessing` skips
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()


@cache
def _lender() -> tuple[bytes, connection.Connection]:
    """Return the address of the process that forks servers of jobs, and a connection that keeps it alive."""
    ours, theirs = forking.Pipe()
    with theirs, socket.socket(socket.AF_UNIX) as listener:
        listener.bind("")  # the kernel finds a name
        listener.listen()
        forking.Process(target=_lend, args=(listener, theirs)).start()
        return listener.getsockname(), ours


@atexit.register
def _let_go() -> None:
    """Release the servers' connections, which ends the servers."""
    _commands.cache_clear()
    _lender.cache_clear()


def _borrow(lender: bytes) -> None:
    """Let this process use servers for its jobs from the first on, except for jobs of another path or threads."""
    forks: Any = import_module("lever_pipe.runtime.forks")
    invocation: Any = import_module("lever_pipe.runtime.invocation")
    forks.FROM_JOB = invocation.WORTH_A_SERVER = 1
    path, begin = import_module("lever_pipe.base.numerics").PORTABLE, forks.Forks.__init__
    before = {name: os.environ.get(name) for name in (*path, THREADS)}

    def ask(command: list[str], *, pass_fds: list[int], env: dict[str, str]) -> Any:
        if any(env.get(name) != value for name, value in before.items()):
            return subprocess.Popen(command, pass_fds=pass_fds, env=env)
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(lender)
            request = {"folder": str(Path.cwd()), "environment": env, "modules": command[4:]}
            socket.send_fds(asking, [b" "], pass_fds)
            asking.sendall(json.dumps(request).encode())
        return SimpleNamespace(wait=lambda: None)

    def begun(server: Any, *words: Any) -> None:
        begin(server, *words)
        server.until_ready(600)

    forks.subprocess, forks.Forks.__init__ = SimpleNamespace(Popen=ask), begun


def _lend(listener: socket.socket, held: connection.Connection) -> None:
    """Import the modules of jobs on a request for a server, and fork one for the client."""
    while held not in connection.wait([listener, held]):
        asking, _ = listener.accept()
        with asking:
            for name in OF_JOBS:
                import_module(name)
            gc.freeze()
            own.Process(target=_serve, args=(asking,)).start()


def _serve(asking: socket.socket) -> None:
    descriptor = socket.recv_fds(asking, 1, 1)[1][0]
    with asking.makefile() as file:
        requested = json.load(file)
    os.chdir(requested["folder"])
    os.environ.clear()
    os.environ.update(requested["environment"])
    sys.path.insert(0, requested["folder"])
    torch = sys.modules.pop("torch")  # else the numeric path would not be the chosen one
    forks = import_module("lever_pipe.runtime.forks")
    sys.modules["torch"] = torch
    forks.serve(socket.socket(fileno=descriptor), requested["modules"])
