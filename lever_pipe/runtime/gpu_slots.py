"""A GPU of its own for each of several jobs in one allocation.

SLURM shows a job its own GPUs. Where one Snakemake starts many jobs inside one allocation, or on a workstation, all see
the same ones: Snakemake counts GPUs but assigns none. So a job locks as many as it needs, by `flock` on one file a GPU,
and hides the others from itself. The kernel lets go of a lock however its process ends.
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

_held: list[IO[str]] = []  # open, and so locked, until this process ends


def take(count: int, *, folder: Path | None = None, sleep: Callable[[float], None] = time.sleep) -> None:
    """Leave this process `count` GPUs that no other job of this allocation uses, until it ends; wait for so many.

    The locks lie in a folder of this machine, user and SLURM job: in another allocation, the same name is another GPU.

    Raises:
        MachineError: fewer than `count` are visible.
    """
    visible = visible_gpus()
    if visible is None:
        import torch

        if torch.cuda.is_available():
            return  # a device that CUDA knows and no tool lists
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
    """Return the GPUs that this process may use, as CUDA names them; None on a machine that cannot tell."""
    names = os.environ.get(VISIBLE)
    if names is not None:
        return [name for name in names.split(",") if name and not name.startswith("-")]  # -1 hides what follows
    try:
        done = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    whole = [line for line in done.stdout.splitlines() if line.startswith("GPU ")]  # below each its MIG slices
    return [str(index) for index, _ in enumerate(whole)]


def _locked(visible: list[str], count: int, folder: Path) -> dict[str, IO[str]]:
    """Return locks on `count` GPUs by name, or none at all, so that two jobs never wait for each other's half."""
    taken: dict[str, IO[str]] = {}
    for name in visible:
        if len(taken) < count and (lock := try_lock(folder / name.replace("/", "_"))) is not None:
            taken[name] = lock
    if len(taken) < count:
        for lock in taken.values():
            lock.close()
        return {}
    return taken
