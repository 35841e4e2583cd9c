"""How a process computes: threads and kernels, never numbers' meaning."""

from __future__ import annotations

import torch

from lever_pipe.experiment.stage_configs import Runtime


def prepare(runtime: Runtime) -> torch.device:
    """Set the threads of this process and return its device; refuse nondeterministic CPU kernels."""
    torch.set_num_threads(runtime.threads)
    # Not `use_deterministic_algorithms`, which imports the compiler: as long as a whole short job.
    torch.set_deterministic_debug_mode("error" if runtime.device == "cpu" else "default")
    # What that mode does besides: it fills the memory of every result before the result is written there.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return torch.device(runtime.device)
