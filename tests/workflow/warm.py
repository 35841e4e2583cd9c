"""Snakemake and our own tools as forks of a process that has imported libraries: what a command of a test computes.

The forking process has imported libraries, and nothing of `lever_pipe`: a command imports that of its own folder.
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

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
    "tqdm",
)
"""What a dry run imports beside `lever_pipe`; no module that a job computes with."""

forking = multiprocessing.get_context("forkserver")
forking.set_forkserver_preload(list(LIBRARIES))


def run(
    module: str, words: list[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run `python -m MODULE WORDS` in a folder; stdout holds everything it said."""
    with tempfile.NamedTemporaryFile() as said:
        process = forking.Process(target=_become, args=(module, words, folder, dict(environment), said.name))
        process.start()
        process.join()
        text = Path(said.name).read_text()
    assert process.exitcode is not None
    return subprocess.CompletedProcess(words, process.exitcode, text)


def _become(module: str, words: list[str], folder: Path, environment: dict[str, str], log: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    assert not {name for name in sys.modules if name.partition(".")[0] in ("lever_pipe", "torch")}
    gc.freeze()  # no search for garbage looks through the libraries, or copies their pages
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path.insert(0, str(folder))
    sys.argv = [sys.argv[0], *words]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:  # as an interpreter ends, which a process of `multiprocessing` does not
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
