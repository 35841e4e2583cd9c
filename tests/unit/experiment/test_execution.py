"""How a job of a stage computes: what is asked of the C library."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from lever_pipe.experiment import execution
from lever_pipe.experiment.stage_configs import Runtime


def test_freed_memory_is_to_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[int, int] = {}
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=asked.__setitem__))
    execution.prepare(Runtime())
    # malloc.h: M_MMAP_THRESHOLD is -3 and at most 32 MiB (with 64-bit pointers), M_TRIM_THRESHOLD is -1.
    assert asked == {-3: 32 * 2**20, -1: 2**30}
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())  # another C library
    execution.prepare(Runtime())
