"""Digests follow a file's content, and a cached digest never belongs to other content."""

from __future__ import annotations

import json
import os
import shutil
import struct
import time
from pathlib import Path

import numpy as np
import pytest
from builders import tick
from safetensors.numpy import save

from lever_pipe.base import storage
from lever_pipe.base.contents import Digests, digest, model_identity, tensors_of
from lever_pipe.base.errors import CheckpointError

ARRAYS = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.ones(4, dtype=np.int64), "none": np.zeros((0, 3))}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "x.safetensors"
    path.write_bytes(save(ARRAYS, metadata={"about": "{}"}))
    return path


def rewritten(path: Path, arrays: dict[str, np.ndarray], **metadata: str) -> Path:
    """Write the format by hand: tensors in the given order, and a padded header."""
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    body = b""
    names = {"float32": "F32", "int64": "I64", "float64": "F64"}
    for name, array in arrays.items():
        content = array.tobytes()
        offsets = [len(body), len(body) + len(content)]
        header[name] = {"dtype": names[str(array.dtype)], "shape": list(array.shape), "data_offsets": offsets}
        body += content
    text = json.dumps(header).encode() + b" " * 13
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


class TestTensors:
    def test_order_and_header_do_not_matter(self, checkpoint: Path, tmp_path: Path) -> None:
        for arrays in (ARRAYS, dict(reversed(ARRAYS.items()))):
            other = rewritten(tmp_path / "other.safetensors", arrays, about="written by another program")
            assert other.read_bytes() != checkpoint.read_bytes()
            assert digest(other) == digest(checkpoint)

    @pytest.mark.parametrize(
        "change",
        [
            {"b": ARRAYS["b"].reshape(3, 2)},
            {"a": np.ones(4).view(np.float64)},
            {"none": np.zeros((3, 0))},
            {"b": np.nextafter(ARRAYS["b"], np.float32(9))},
            {"more": np.ones(1)},
        ],
    )
    def test_shape_dtype_bytes_and_names_matter(self, checkpoint: Path, tmp_path: Path, change: dict) -> None:
        other = tmp_path / "other.safetensors"
        other.write_bytes(save(ARRAYS | change))
        assert digest(other) != digest(checkpoint)
        differing = {n for n, text in tensors_of(other).items() if tensors_of(checkpoint).get(n) != text}
        assert differing == set(change)

    def test_every_truncation_is_seen(self, checkpoint: Path) -> None:
        content = checkpoint.read_bytes()
        for length in range(len(content)):
            checkpoint.write_bytes(content[:length])
            with pytest.raises(CheckpointError, match=r"x\.safetensors"):
                digest(checkpoint)
        checkpoint.write_bytes(content + b"\0")
        with pytest.raises(CheckpointError):
            digest(checkpoint)

    def test_every_flipped_bit_is_seen(self, checkpoint: Path) -> None:
        content, base = checkpoint.read_bytes(), digest(checkpoint)
        blind = []
        for position in range(len(content)):
            for bit in (1, 128):
                checkpoint.write_bytes(content[:position] + bytes([content[position] ^ bit]) + content[position + 1 :])
                try:
                    if digest(checkpoint) == base:
                        blind.append(position)
                except CheckpointError:
                    continue
        # What nobody reads may change: the metadata's value, and blanks that pad the header.
        header = content[8 : 8 + struct.unpack("<Q", content[:8])[0]]
        assert {content[p] for p in blind} <= set(b' {}about:",_metd')
        assert all(8 <= p < 8 + len(header) for p in blind)


MANIFEST = {"stage": "s", "config": {"x": 1}, "inputs": {"a": "1"}, "code": "c", "commit": "g", "dirty": False,
        "versions": {}, "device": "cpu", "threads": 1, "seconds": 2.5}  # fmt: skip


class TestManifests:
    def written(self, path: Path, **changes: object) -> str:
        storage.write_json(path, MANIFEST | changes)
        return digest(path)

    @pytest.mark.parametrize("name", ["run.json", "selections.run.json"])
    def test_time_and_place_do_not_matter(self, tmp_path: Path, name: str) -> None:
        base = self.written(tmp_path / name)
        assert self.written(tmp_path / name, seconds=9.0, paths={"a": "x"}, outputs={"o": "2"}, tensors={}) == base

    @pytest.mark.parametrize("key", sorted(MANIFEST.keys() - {"seconds"}))
    def test_all_else_matters(self, tmp_path: Path, key: str) -> None:
        assert self.written(tmp_path / "run.json", **{key: "other"}) != self.written(tmp_path / "run.json")

    def test_other_json_is_bytes(self, tmp_path: Path) -> None:
        assert self.written(tmp_path / "metrics.json") != self.written(tmp_path / "metrics.json", seconds=3.0)


def folder_of(path: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


FILES = {"config.json": b"{}", "sub/weights.bin": b"\x00" * 100}


class TestFolders:
    def test_a_model_is_its_content(self, tmp_path: Path) -> None:
        first = folder_of(tmp_path / "a", FILES)
        identity = model_identity(str(first))
        assert len(identity) == 16
        copied = shutil.copytree(first, tmp_path / "b")
        os.utime(copied / "config.json", (1, 1))
        assert model_identity(str(copied)) == identity
        others = [
            FILES | {"config.json": b"{ }"},
            FILES | {"sub/weights.bin": b"\x00" * 99 + b"\x01"},
            FILES | {"extra": b""},
            {"config.json": b"{}", "weights.bin": b"\x00" * 100},
        ]
        identities = {model_identity(str(folder_of(tmp_path / f"c{i}", other))) for i, other in enumerate(others)}
        assert len(identities | {identity}) == 5

    def test_notes_of_a_workflow_or_a_download_do_not_matter(self, tmp_path: Path) -> None:
        first = folder_of(tmp_path / "a", FILES)
        hidden = {".gitattributes": b"x", ".cache/x.metadata": b"today", "sub/.snakemake_timestamp": b""}
        assert digest(folder_of(tmp_path / "b", FILES | hidden)) == digest(first)

    def test_a_missing_or_damaged_model(self, tmp_path: Path) -> None:
        assert model_identity(str(tmp_path / "none")) == "absent"
        damaged = {model_identity(str(folder_of(tmp_path / n, {"model.safetensors": n.encode()}))) for n in "abc"}
        assert len(damaged) == 3


class TestMemory:
    @pytest.fixture
    def old(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Return a file that was written long before the present time of this test."""
        path = tmp_path / "data"
        path.write_text("first")
        monkeypatch.setattr(time, "time_ns", lambda: path.stat().st_ctime_ns + 3600 * 10**9)
        return path

    def test_what_did_not_change_is_read_once(self, old: Path, tmp_path: Path) -> None:
        digests = Digests(tmp_path / "memory.json")
        assert digests.of(old) == digests.of(old) == digest(old)
        assert digests.read_bytes == 5
        digests.save()
        later = Digests(tmp_path / "memory.json")
        assert later.of(old) == digest(old)
        assert later.read_bytes == 0

    def test_what_was_deleted_is_forgotten(self, old: Path, tmp_path: Path) -> None:
        other = tmp_path / "other"
        other.write_text("gone soon")
        digests = Digests(tmp_path / "memory.json")
        digests.of(old), digests.of(other)
        other.unlink()
        digests.save()
        assert list(json.loads((tmp_path / "memory.json").read_text())["digests"]) == [str(old)]

    @pytest.mark.parametrize("time_s", [1, 2_000_000_000])
    def test_another_content_of_any_time_is_read(self, old: Path, time_s: int) -> None:
        digests = Digests()
        digests.of(old)
        old.write_text("other")
        os.utime(old, (time_s, time_s))
        assert digests.of(old) == digest(old)

    def test_another_content_at_the_very_same_time_is_read(self, old: Path) -> None:
        """`os.utime` restores the content's time, never the inode's."""
        digests, stat = Digests(), old.stat()
        before = digests.of(old)
        tick(old.parent)
        old.write_text("other")
        os.utime(old, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        assert digests.of(old) == digest(old) != before

    def test_what_changed_just_now_is_not_trusted(self, tmp_path: Path) -> None:
        path, digests = tmp_path / "data", Digests()
        path.write_text("first")
        digests.of(path)
        assert digests.of(path) == digest(path)
        assert digests.read_bytes == 10

    @pytest.mark.parametrize("content", ["", "[]", "{", '{"a": 1}', '{"a": [["x"], "y"]}', "null"])
    def test_a_damaged_memory_is_forgotten(self, old: Path, tmp_path: Path, content: str) -> None:
        (tmp_path / "memory.json").write_text(content)
        assert Digests(tmp_path / "memory.json").of(old) == digest(old)

    def test_folders_remember_their_files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = folder_of(tmp_path / "f", {"a": b"1", "b/c": b"22"})
        now = time.time_ns() + 3600 * 10**9
        monkeypatch.setattr(time, "time_ns", lambda: now)
        digests = Digests()
        assert digests.of(folder) == digests.of(folder) == digest(folder)
        assert digests.read_bytes == 3
        (folder / "b/c").write_bytes(b"333")
        assert digests.of(folder) == digest(folder)
        assert digests.read_bytes == 6

    def test_nothing_has_no_digest(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            Digests().of(tmp_path / "none")
