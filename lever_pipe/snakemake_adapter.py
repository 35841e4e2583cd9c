"""What this package takes from Snakemake beyond its public interface, with the version that it was checked against.

* `snakemake.shell.sp`, the module by which a rule's command is started (Snakemake 9.27): it has no hook for another way
  to start one. What is put in its place starts a plain call of this package as a fork, and everything else, an edited
  command or one inside an environment or a container, as before. `tests/unit/test_snakemake_adapter.py` fails when
  Snakemake starts commands otherwise.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from lever_pipe.forks import Job

PREFIX = "set -euo pipefail; "
CALL = ["python", "-m", "lever_pipe"]

Start = Callable[["Call", Mapping[str, str]], Job | None]
"""Starts a call in an environment; None where it is to start as any other command."""


class Call(NamedTuple):
    """`python -m lever_pipe WORDS > LOG 2>&1`."""

    words: list[str]
    log: str


def call_in(command: str) -> Call | None:
    """Return the call that a shell command consists of, None if a shell could read anything else in it."""
    plain = command.removeprefix(PREFIX).strip()
    text, separator, log = plain.removesuffix(" 2>&1").rpartition(" > ")
    try:
        words, logs = shlex.split(text), shlex.split(log)
    except ValueError:
        return None
    again = f"{shlex.join(words)} > {shlex.join(logs)} 2>&1"
    if not separator or len(logs) != 1 or words[: len(CALL)] != CALL or again != plain:
        return None
    return Call(words[len(CALL) :], logs[0])


def start_calls_by(start: Start) -> None:
    """Let the local executor of this process start calls of the package by `start`."""
    module: Any = import_module("snakemake.shell")  # the package's attribute of that name is the class inside
    module.sp = _Subprocess(start)


class _Subprocess:
    """`subprocess`, but for how a shell command begins."""

    def __init__(self, start: Start) -> None:
        self._start = start

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def Popen(self, command: Any, **options: Any) -> subprocess.Popen[Any] | Job:  # noqa: N802 - the library's name
        """Return the started command."""
        return self._forked(command, options) or subprocess.Popen(command, **options)

    def _forked(self, command: Any, options: Mapping[str, Any]) -> Job | None:
        environment = options.get("env")
        plain = options.get("shell") and options.get("stdout") != subprocess.PIPE and isinstance(command, str)
        call = call_in(command) if plain else None
        if call is None or environment is None:
            return None
        python = shutil.which(CALL[0], path=environment.get("PATH"))
        same = python is not None and Path(python).resolve() == Path(sys.executable).resolve()
        return self._start(call, environment) if same else None
