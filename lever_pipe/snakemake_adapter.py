"""What this package takes from Snakemake beyond its public interface, with the version that it was checked against.

* `snakemake.shell.sp`, the module by which a rule's command is started (Snakemake 9.27): it has no hook for another way
  to start one. What is put in its place starts a plain call of this package as a fork, and everything else, an edited
  command or one inside an environment or a container, as before. `tests/unit/test_snakemake_adapter.py` fails when
  Snakemake starts commands otherwise.
* `load_configfile` and `parse_config`, which read configuration files and `--config` (9.27): it has no hook for another
  reader, takes the last of repeated keys, reads `1:30` as 90, executes a file that says `__use_yte__`, and reads what
  `--configfile` names before the Snakefile. So each profile, which it reads first, calls `read_configuration_strictly`,
  and the Snakefile does for a call without one.
"""

from __future__ import annotations

import copy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from lever_pipe import configuration
from lever_pipe.errors import LeverPipeError
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


def read_configuration_strictly(workflow: Any = None) -> None:
    """Let Snakemake read configuration files and `--config` in this process by `lever_pipe.configuration`.

    Args:
        workflow: one whose command line may have been read otherwise before; it is read once more.

    Raises:
        WorkflowError: a file or word of the command line that has not one reading.
    """
    cli: Any = import_module("snakemake.cli")
    former = cli.parse_config
    if former is _read_words:
        return
    for name in ("snakemake.common.configfile", "snakemake.settings.types"):
        module: Any = import_module(name)
        module.load_configfile = _read_file
    cli.parse_config = _read_words
    if workflow is not None:
        settings, is_of_words = workflow.config_settings, False
        with suppress(Exception):  # values that a program gave, not a command line, may be no words
            is_of_words = former(settings.config_args) == settings.config
        settings.config = _read_words(settings.config_args) if is_of_words else settings.config
        settings.overwrite_config = type(settings)(settings.config, settings.configfiles).overwrite_config
        workflow.globals["config"] = copy.deepcopy(settings.overwrite_config)


def configuration_of(files: Iterable[Path], words: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the values of files, each laid over the one before, and those of `--config` words over all, as a run does.

    Raises:
        ConfigError: a file or word that has not one reading.
    """
    from snakemake.utils import update_config

    values: dict[str, Any] = {}
    for each in (*map(configuration.read_file, files), configuration.read_words(words)):
        update_config(values, each)
    return values


def _read_file(path: Any) -> dict[str, Any]:
    try:
        return configuration.read_file(Path(path))
    except LeverPipeError as fault:
        raise _refusal(fault) from None


def _read_words(words: Sequence[str] | None) -> dict[str, Any]:
    try:
        return configuration.read_words(words)
    except LeverPipeError as fault:
        raise _refusal(fault) from None


def _refusal(fault: LeverPipeError) -> Exception:
    """Return a fault as one that Snakemake prints as a message."""
    from snakemake_interface_common.exceptions import WorkflowError

    refusal: Exception = WorkflowError(str(fault))
    return refusal


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
