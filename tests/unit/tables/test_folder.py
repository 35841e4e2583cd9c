from __future__ import annotations

from pathlib import Path

import pytest

from lever_pipe.base.atomic import write_folder


def test_a_folder_replaces_its_former_self(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "tables"
    write_folder(target, lambda folder: (folder / "a").write_text("1"))
    write_folder(target, lambda folder: (folder / "b").write_text("2"))
    assert [path.name for path in target.iterdir()] == ["b"]
    assert [path.name for path in target.parent.iterdir()] == ["tables"]


def test_a_failure_leaves_the_former_folder(tmp_path: Path) -> None:
    target = tmp_path / "tables"
    write_folder(target, lambda folder: (folder / "a").write_text("1"))

    def fail(folder: Path) -> None:
        (folder / "b").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_folder(target, fail)
    assert [path.name for path in target.iterdir()] == ["a"]
    assert [path.name for path in tmp_path.iterdir()] == ["tables"]
