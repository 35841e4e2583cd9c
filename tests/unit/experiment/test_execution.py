"""How a job of a stage computes, in a process of its own: what it sets stays set."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource
import torch
from lever_pipe.experiment import execution
from lever_pipe.experiment.stage_configs import Runtime

for is_prepared in (False, False, True, True):
    if is_prepared:
        execution.prepare(Runtime())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        several = [torch.ones(1_000_000) for _ in range(3)]
        del several
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's memory")
def test_a_step_uses_the_memory_of_the_step_before() -> None:
    told = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True).stdout
    _, plain, _, prepared = map(int, told.split())
    pages = 20 * 3 * 4_000_000 // 4096
    assert plain > pages / 2, "this allocator keeps memory by itself"
    assert prepared < pages / 50
