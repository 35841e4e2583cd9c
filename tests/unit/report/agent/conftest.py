"""The default study, compared once for all tests of its tables."""

from __future__ import annotations

from pathlib import Path

import agent_tables
import pytest
from agent_runs import Study
from agent_tables import Tabulate, Tabulated

from lever_pipe.report.evidence import EvidenceRow


@pytest.fixture(scope="session")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> list[EvidenceRow]:
    return agent_tables.evidence_of(tmp_path_factory.mktemp("default"), Study())


@pytest.fixture(scope="session")
def default(evidence: list[EvidenceRow]) -> Tabulated:
    return agent_tables.tabulate(evidence, Study())


@pytest.fixture
def tabulated(tmp_path: Path) -> Tabulate:
    return lambda study, **changes: agent_tables.tabulate(agent_tables.evidence_of(tmp_path, study), study, **changes)
