"""Calls of `python -m lever_pipe` as forks of this process, and accelerate's launcher, whose processes are forks too.

Everything runs that a fresh process would run but its imports, and what a test has put in another's place stays there.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

from accelerate.commands import launch
from torch.distributed import run as torchrun

from lever_pipe.__main__ import main

FORK = multiprocessing.get_context("fork")


def start(call: Sequence[str], log: Path) -> BaseProcess:
    """Start `PYTHON -m lever_pipe WORDS > LOG 2>&1`."""
    process = FORK.Process(target=_become, args=(list(call[3:]), log))
    process.start()
    return process


def _become(words: list[str], log: Path) -> NoReturn:
    sys.stdout = sys.stderr = log.open("w", buffering=1)
    logging.getLogger().handlers.clear()
    os.execv = _become_launcher  # type: ignore[assignment]
    sys.exit(main(words))


def _become_launcher(_: str, call: list[str]) -> NoReturn:
    options = launch.launch_command_parser().parse_args(call[3:])
    chosen = torchrun.config_from_args

    def of_forks(options: Any) -> tuple[Any, Any, list[Any]]:
        config, _, _ = chosen(options)
        config.start_method = "fork"
        return config, _become_worker, [options.training_script_args]

    torchrun.config_from_args = of_forks  # type: ignore[assignment]
    launch.launch_command(options)
    sys.exit()


def _become_worker(words: list[str]) -> NoReturn:
    sys.exit(main(words))
