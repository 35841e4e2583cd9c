"""The compiled reader reads what the library's own reader reads, and refuses what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lever_pipe.base.errors import RecordError
from lever_pipe.base.plain_yaml import read_plain

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "resources").rglob("*.yaml"))


def test_every_file_of_the_resources_reads_alike() -> None:
    assert len(FILES) > 20
    for path in FILES:
        assert read_plain(path, "values") == yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("text", ["a: [1", "a: !!python/object/apply:os.getcwd []", "a: b: c", "\tx: 1"])
def test_what_is_no_plain_yaml_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(RecordError, match=r"a\.yaml: expected YAML; found .*Mend the file"):
        read_plain(tmp_path / "a.yaml", "values")
