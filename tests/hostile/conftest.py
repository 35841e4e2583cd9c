from __future__ import annotations

import pytest
from material import Door, all_doors


@pytest.fixture(scope="session")
def doors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Door]:
    return all_doors(tmp_path_factory.mktemp("doors"))
