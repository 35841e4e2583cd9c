from __future__ import annotations

from pathlib import Path

import pytest

from lever_pipe.base.errors import RecordError
from lever_pipe.intention.simulators import _prompted
from lever_pipe.intention.texts import read_texts
from lever_pipe.intention.verl import launch


@pytest.mark.parametrize(
    ("folder", "digest"),
    [(_prompted._FOLDER, _prompted._DIGEST), (launch.TEMPLATES, launch.TEMPLATES_DIGEST)],
    ids=["prompts", "templates"],
)
def test_the_code_knows_its_texts_and_refuses_edited_ones(folder: Path, digest: str, tmp_path: Path) -> None:
    for name, text in read_texts(folder, digest).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_texts(tmp_path, digest) == read_texts(folder, digest)
    (tmp_path / name).write_text(f"{text} ", encoding="utf-8")
    with pytest.raises(RecordError, match=rf"expected the texts with digest {digest}; found"):
        read_texts(tmp_path, digest)
