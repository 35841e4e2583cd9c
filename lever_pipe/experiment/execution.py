"""How a process computes: threads and kernels, never numbers' meaning."""

from __future__ import annotations

import ctypes
from contextlib import suppress

import torch

from lever_pipe.experiment.stage_configs import Runtime

MMAP_THRESHOLD, TRIM_THRESHOLD = (-3, 32 << 20), (-1, 1 << 30)
"""Parameters of mallopt(3) with the bytes that they are set to; the first allows no more."""


def prepare(runtime: Runtime) -> torch.device:
    """Set the threads of this process and return its device; refuse nondeterministic CPU kernels."""
    torch.set_num_threads(runtime.threads)
    _keep_freed_memory()
    # Not `use_deterministic_algorithms`, which imports the compiler: as long as a whole short job.
    torch.set_deterministic_debug_mode("error" if runtime.device == "cpu" else "default")
    # What that mode does besides: it fills the memory of every result before the result is written there.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return torch.device(runtime.device)


def _keep_freed_memory() -> None:
    """Let a step use the memory of the step before: asked of the kernel, each page is zeroed when it is first met."""
    with suppress(OSError, AttributeError):  # not glibc
        for parameter, size in (MMAP_THRESHOLD, TRIM_THRESHOLD):
            ctypes.CDLL(None).mallopt(parameter, size)
