"""The cache of real parts: whole or absent, of the pinned archive or not at all."""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # the benchmarks are not installed

from benchmarks import real_parts
from benchmarks.real_parts import PARTS, Part
from lever_pipe.base.errors import DataError

FILES = {"pack/data/a.txt": b"a", "pack/data/deep/b.txt": b"b", "pack/data/code.py": b"1/0", "pack/other.txt": b"x"}
REPOSITORY = Path(__file__).parents[2]


def wheel(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def tarball(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture(params=[wheel, tarball])
def archive(request: pytest.FixtureRequest) -> bytes:
    return request.param(FILES)


@pytest.fixture
def part(archive: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Part]:
    def download(part: Part, folder: Path) -> Path:
        path = folder / "some.archive"
        path.write_bytes(archive)
        return path

    monkeypatch.setenv(real_parts.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(real_parts, "download", download)
    return Part("some", "pip", "some", "1", hashlib.sha256(archive).hexdigest(), "MIT", "pack/data")


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_part_is_unpacked_once_and_without_code(part: Part, tmp_path: Path) -> None:
    assert real_parts.bring(part)
    assert tree(tmp_path / "cache") == {"some-1/a.txt": b"a", "some-1/deep/b.txt": b"b"}
    assert not real_parts.bring(part)


def test_only_the_named_files_are_taken(part: Part, tmp_path: Path) -> None:
    real_parts.bring(replace(part, files=("deep/b.txt",)))
    assert tree(tmp_path / "cache") == {"some-1/deep/b.txt": b"b"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"sha256": "0" * 64}, "expected sha256 0000"),
        ({"files": ("a.txt", "c.txt")}, "found no c.txt"),
    ],
)
def test_another_archive_leaves_nothing(part: Part, tmp_path: Path, change: dict[str, object], told: str) -> None:
    with pytest.raises(DataError, match=told):
        real_parts.bring(replace(part, **change))  # type: ignore[arg-type]
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_path_that_leads_out_is_not_unpacked(part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = wheel({"pack/data/../../../out.txt": b"x", "pack/data/a.txt": b"a"})
    monkeypatch.setattr(real_parts, "download", lambda part, folder: _written(folder / "w", content))
    real_parts.bring(replace(part, sha256=hashlib.sha256(content).hexdigest()))
    assert tree(tmp_path) == {"cache/some-1/a.txt": b"a"}


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("client", ["npm", "pip"])
def test_a_client_that_fails_is_one_warning_and_the_rest_goes_on(
    client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(real_parts.VARIABLE, str(tmp_path))
    monkeypatch.setenv("PATH", "")  # no npm
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    parts = [replace(PARTS[0], name=f"{client}{i}", client=client) for i in range(2)]  # type: ignore[arg-type]
    monkeypatch.setattr(real_parts, "PARTS", parts)
    assert real_parts.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:2]] == [f"{client}0-3.7.2", f"{client}1-3.7.2"]
    assert all("make real-parts" in line for line in lines[:2])
    assert lines[2] == f"0 of 2 parts in {tmp_path}"


def test_every_part_is_pinned_and_told_of() -> None:
    told = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for part in PARTS:
        assert len(part.sha256) == 64
        assert f"`{part.package}` {part.version}" in told
        assert part.licence in told
    assert len({part.name for part in PARTS}) == len(PARTS)


def test_no_host_is_named() -> None:
    for path in ("benchmarks/real_parts.py", "Makefile", ".ci/run"):
        assert "://" not in (REPOSITORY / path).read_text(encoding="utf-8")
