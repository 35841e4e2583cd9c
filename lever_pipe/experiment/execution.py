"""Threads, kernels and memory of a process; they do not change the meaning of numbers."""

from __future__ import annotations

import ctypes
from contextlib import suppress

import torch

from lever_pipe.experiment.job_runtime import Runtime

MMAP_THRESHOLD, TRIM_THRESHOLD = (-3, 32 << 20), (-1, 1 << 30)
"""Parameters of mallopt(3) with their values in bytes; the first is at its allowed maximum."""


def prepare(runtime: Runtime) -> torch.device:
    """Set the threads of this process and return its device; refuse nondeterministic CPU kernels."""
    torch.set_num_threads(runtime.threads)
    _keep_freed_memory()
    # Not `use_deterministic_algorithms`: it imports the compiler, which takes as long as a whole short job.
    torch.set_deterministic_debug_mode("error" if runtime.device == "cpu" else "default")
    # Deterministic mode also fills each result's memory before the result is written; avoid that cost.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return torch.device(runtime.device)


def _keep_freed_memory() -> None:
    """Keep freed memory in the process for the next step; the kernel zeroes each new page on first access."""
    with suppress(OSError, AttributeError):  # not glibc
        for parameter, size in (MMAP_THRESHOLD, TRIM_THRESHOLD):
            ctypes.CDLL(None).mallopt(parameter, size)
