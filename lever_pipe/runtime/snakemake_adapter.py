"""What this package takes from Snakemake beyond its public interface, with the version that it was checked against.

* `snakemake.shell.sp`, the module by which a rule's command is started (Snakemake 9.27): it has no hook for another way
  to start one. What is put in its place starts a plain call of this package as a fork, and everything else, an edited
  command or one inside an environment or a container, as before. `tests/unit/test_snakemake_adapter.py` fails when
  Snakemake starts commands otherwise.
* `snakemake.dag.DAG`, which jobs run and who makes a file (Snakemake 9.27): `file2jobs` knows no maker of a file inside
  an output folder, and `update_needrun` asks only for outputs that other jobs read, and plans all below a planned job.
  `tests/workflow/test_reruns.py` and `test_deleted_results.py` fail when Snakemake plans otherwise.
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

from lever_pipe.base.errors import LeverPipeError
from lever_pipe.experiment import configuration
from lever_pipe.runtime.forks import Job

PREFIX = "set -euo pipefail; "
CALL = ["python", "-m", "lever_pipe"]

Start = Callable[["Call", Mapping[str, str]], Job | None]
"""Starts a call in an environment; None where it is to start as any other command."""
Standing = Callable[[Any], list[Any]]
"""Returns the jobs that a DAG plans and whose artefacts will be the same."""


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


def find_makers_of_folders() -> None:
    """Let a file inside an output folder be made by whoever makes the folder."""
    from snakemake.dag import DAG
    from snakemake.exceptions import MissingRuleException

    found = getattr(DAG.file2jobs, "unamended", DAG.file2jobs)

    async def file2jobs(dag: Any, targetfile: str, wildcards_dict: Any = None) -> list[Any]:
        for path in (targetfile, *map(str, Path(targetfile).parents)):
            with suppress(MissingRuleException):
                jobs: list[Any] = await found(dag, path, wildcards_dict)
                if path == targetfile or all(job.output_by_path[path].is_directory for job in jobs):
                    return jobs
        raise MissingRuleException(targetfile)

    file2jobs.unamended = found  # type: ignore[attr-defined]
    DAG.file2jobs = file2jobs


def amend_plans(standing: Standing, *, whole: str) -> None:
    """Let a plan make what is missing, whether or not another job reads it, and let stand what nothing in it changes.

    Args:
        standing: is asked of each plan.
        whole: the rule that asks for all that there is to be made; other targets ask for what they need.
    """
    from snakemake.dag import DAG

    planned = getattr(DAG.update_needrun, "unamended", DAG.update_needrun)

    async def update_needrun(dag: Any, create_inventory: bool = False) -> None:
        if any(rule.name == whole for rule in dag.targetrules):
            for job in dag.bfs(dag.dependencies, *dag.targetjobs):
                gone = [file for file in job.output if not (file.is_temp or await file.exists())]
                dag.reason(job).missing_output.update(gone)
        await planned(dag, create_inventory)
        for job in standing(dag):
            _take_out(dag, job)

    update_needrun.unamended = planned  # type: ignore[attr-defined]
    DAG.update_needrun = update_needrun


def _take_out(dag: Any, job: Any) -> None:
    """Take a job out of a plan, and its files out of the reasons of other jobs that have further ones."""
    plan = vars(dag)
    plan["_needrun"].remove(job)
    plan["_n_until_ready"].pop(job, None)
    plan["_len"] -= 1
    dag.reason(job).clear()
    for later, files in dag.depending[job].items():
        if later in plan["_n_until_ready"]:
            plan["_n_until_ready"][later] -= 1
        updated = dag.reason(later).updated_input_run
        if updated - files:
            updated.difference_update(files)


def read_configuration_strictly(workflow: Any = None) -> None:
    """Let Snakemake read configuration files and `--config` in this process by `lever_pipe.experiment.configuration`.

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
