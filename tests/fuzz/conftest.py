"""Tells after a large run (`LEVER_PIPE_FUZZ=5000 pytest tests/fuzz`) how many inputs each target refused and took."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bad_input import MANY, TRIED


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings("ignore:Generating overly large repr"))  # of a failing input


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if MANY in os.environ:
        for target, (refused, taken) in sorted(TRIED.items()):
            terminalreporter.write_line(f"fuzz: {target}: {refused + taken} inputs, {refused} refused, {taken} taken")
