"""The default study, tabulated once for all tests of its tables."""

from __future__ import annotations

from pathlib import Path

import agent_tables
import pytest
from agent_runs import Study
from agent_tables import Tabulate, Tabulated


@pytest.fixture(scope="session")
def default(tmp_path_factory: pytest.TempPathFactory) -> Tabulated:
    return agent_tables.tabulate(tmp_path_factory.mktemp("default"), Study())


@pytest.fixture
def tabulated(tmp_path: Path) -> Tabulate:
    return lambda study, **changes: agent_tables.tabulate(tmp_path, study, **changes)
