"""How a process computes: threads and kernels, never numbers' meaning."""

from __future__ import annotations

import torch

from lever_pipe.stage_configs import Runtime


def prepare(runtime: Runtime) -> torch.device:
    """Set the threads of this process and return its device; refuse nondeterministic CPU kernels."""
    torch.set_num_threads(runtime.threads)
    torch.use_deterministic_algorithms(runtime.device == "cpu")
    return torch.device(runtime.device)
