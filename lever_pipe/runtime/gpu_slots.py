"""Assign separate GPUs to concurrent jobs of one allocation.

SLURM makes only a job's own GPUs visible. If Snakemake starts several jobs inside one allocation, or on a workstation,
all of them see the same GPUs: Snakemake counts GPUs but does not assign them. So a job locks the GPUs that it needs, by
`flock` on one file per GPU, and hides the others. The kernel releases a lock when its process ends in any way.
"""

from __future__ import annotations

import logging
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from lever_pipe.base.errors import MachineError
from lever_pipe.runtime.ownership import try_lock

VISIBLE = "CUDA_VISIBLE_DEVICES"
SECONDS_BETWEEN_TRIES = 2.0

log = logging.getLogger(__name__)

_held: list[IO[str]] = []  # lock files, kept open and therefore locked until this process ends


def take(count: int, *, folder: Path | None = None, sleep: Callable[[float], None] = time.sleep) -> None:
    """Lock `count` GPUs for this process until it ends, and hide the others; wait while other jobs use them.

    The locks are in a folder for this machine, user and SLURM job: in another allocation, the same name may be another
    GPU.

    Raises:
        MachineError: fewer than `count` are visible.
    """
    visible = visible_gpus()
    if visible is None:
        import torch

        if torch.cuda.is_available():
            return  # CUDA has a device that no tool lists, so it cannot be locked
        visible = []
    if len(visible) < count:
        raise MachineError(
            f"expected {count} GPUs",
            found=f"{len(visible)} visible",
            do="Run where there are so many, or on the CPU: --set-resources RULE:device=cpu",
        )
    job = os.environ.get("SLURM_JOB_ID", "none")
    location = folder or Path(tempfile.gettempdir()) / f"lever-pipe-gpus-{os.getuid()}-{job}"
    location.mkdir(parents=True, exist_ok=True, mode=0o700)
    taken = _locked(visible, count, location)
    while len(taken) < count:
        log.info("waiting for %d of the GPUs %s: others use them", count, ", ".join(visible))
        sleep(SECONDS_BETWEEN_TRIES)
        taken = _locked(visible, count, location)
    _held.extend(taken.values())
    os.environ[VISIBLE] = ",".join(taken)


def visible_gpus() -> list[str] | None:
    """Return CUDA's names of the GPUs that this process may use; None without nvidia-smi."""
    names = os.environ.get(VISIBLE)
    if names is not None:
        return [name for name in names.split(",") if name and not name.startswith("-")]  # -1 is no device
    try:
        done = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    whole = [line for line in done.stdout.splitlines() if line.startswith("GPU ")]  # indented lines are MIG slices
    return [str(index) for index, _ in enumerate(whole)]


def _locked(visible: list[str], count: int, folder: Path) -> dict[str, IO[str]]:
    """Lock `count` GPUs, or none if too few are free, so that two jobs never wait for each other's GPUs."""
    taken: dict[str, IO[str]] = {}
    for name in visible:
        if len(taken) < count and (lock := try_lock(folder / name.replace("/", "_"))) is not None:
            taken[name] = lock
    if len(taken) < count:
        for lock in taken.values():
            lock.close()
        return {}
    return taken
