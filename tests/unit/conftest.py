"""Puts this folder on the import path (`from builders import ...`) and undoes what a stage sets for its process."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _restore_execution() -> Iterator[None]:
    torch = sys.modules.get("torch")  # light tests need not wait for its import
    threads = torch.get_num_threads() if torch else None
    yield
    if torch := sys.modules.get("torch"):
        torch.set_deterministic_debug_mode("default")
        torch.set_num_threads(threads or torch.get_num_threads())
