"""Chooses the numeric path before any test imports torch, and draws samples of long checks."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

import lever_pipe  # noqa: F401

from .sampling import digest_of_code, sample

# The same examples in every run, and as long as a busy machine needs for them.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")

# Freezing must not change how the interpreter ends: some libraries warn about objects that are never freed.
atexit.register(gc.unfreeze)


def pytest_addoption(parser: pytest.Parser) -> None:
    messages = "run one test of every second file of a folder, chosen by the digest of the code"
    parser.addoption("--sample", action="store_true", help=messages)


def pytest_collection() -> None:
    """Search for no garbage while modules are imported and tests made: all of it lasts."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave what all modules of tests import out of the search for garbage, which some libraries start at each call."""
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


@pytest.fixture(scope="session")
def real_parts() -> Callable[[str], Path]:
    """Return what gives the folder of a real part by its name (`benchmarks/real_parts.py`), or skips."""
    from benchmarks import real_parts as parts

    def folder_of(name: str) -> Path:
        location = parts.folder_of(name)
        if not location.is_dir():
            pytest.skip(f"the real part {location} is not there; {parts.BRING} brings it")
        return location

    return folder_of


FIRST = ("tests/workflow/test_contents", "tests/unit/lvlms", "tests/workflow", "tests/browser", "tests/unit/intention")
"""Places of the longest files: what takes long begins early, or one of two processes waits for it at the end. While the
first makes the finished run that others read, the next has work that needs none."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests, and draw the sample from those that marks and keywords leave."""
    items.sort(key=lambda item: next((i for i, name in enumerate(FIRST) if item.nodeid.startswith(name)), len(FIRST)))
    if config.getoption("sample"):
        chosen = sample([item.nodeid for item in items], digest_of_code())
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
        items[:] = [item for item in items if item.nodeid in chosen]
