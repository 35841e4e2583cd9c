from __future__ import annotations

import pytest
from user_files import FileReader, all_readers


@pytest.fixture(scope="session")
def readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FileReader]:
    return all_readers(tmp_path_factory.mktemp("readers"))
