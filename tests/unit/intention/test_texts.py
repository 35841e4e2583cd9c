from __future__ import annotations

from pathlib import Path

import pytest

from lever_pipe.base.errors import RecordError
from lever_pipe.intention.simulators import openai
from lever_pipe.intention.texts import read_texts
from lever_pipe.intention.verl import launch


@pytest.mark.parametrize(
    ("folder", "pattern", "digest"),
    [(openai.PROMPTS, "*.txt", openai.DIGEST), (launch.TEMPLATES, "*.j2", launch.TEMPLATES_DIGEST)],
    ids=["prompts", "templates"],
)
def test_the_code_knows_its_texts_and_no_others(folder: Path, pattern: str, digest: str, tmp_path: Path) -> None:
    for name, text in read_texts(folder, pattern, digest).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / ".stray").write_bytes(b"\xff")
    assert read_texts(tmp_path, pattern, digest) == read_texts(folder, pattern, digest)
    (tmp_path / name).write_text(f"{text} ", encoding="utf-8")
    with pytest.raises(RecordError, match=rf"expected the texts with digest {digest}; found"):
        read_texts(tmp_path, pattern, digest)
