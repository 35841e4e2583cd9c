from __future__ import annotations

from pathlib import Path
from typing import IO

import numpy as np
import pytest
from builders import example, pool, random_pools
from pydantic import BaseModel

from lever_pipe.base import atomic, storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.records import Example, Pool


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_exception_leaves_the_former_file_and_no_litter(tmp_path: Path) -> None:
    def write(handle: IO[bytes]) -> None:
        handle.write(b"half")
        raise RuntimeError("stop")

    for former in ({}, {"a.txt": "former"}):
        for name, text in former.items():
            (tmp_path / name).write_text(text)
        with pytest.raises(RuntimeError, match="stop"):
            atomic.write_file(tmp_path / "a.txt", write)
        assert names(tmp_path) == list(former)
        assert all((tmp_path / name).read_text() == text for name, text in former.items())


def test_a_generator_that_fails_writes_nothing(tmp_path: Path) -> None:
    def rows() -> list[BaseModel]:
        yield example(0)  # type: ignore[misc]
        raise KeyError("row 1")

    with pytest.raises(KeyError):
        storage.write_rows(tmp_path / "rows.jsonl", rows())
    assert names(tmp_path) == []


def test_rows_survive_the_round_trip(tmp_path: Path) -> None:
    rows = [example(0, question='Ünïcode \u2028 "quotes"\n?'), example(1), example(2, answers=("a", "b"))]
    storage.write_rows(tmp_path / "rows.jsonl", rows)
    assert (tmp_path / "rows.jsonl").read_bytes().count(b"\n") == 3
    assert storage.read_rows(tmp_path / "rows.jsonl", Example) == rows
    storage.write_row(tmp_path / "row.json", rows[0])
    assert storage.read_row(tmp_path / "row.json", Example) == rows[0]
    pools = random_pools(3, 30)
    storage.write_rows(tmp_path / "pools.jsonl", pools)
    assert storage.read_rows(tmp_path / "pools.jsonl", Pool) == pools


@pytest.mark.parametrize("content", [b"\xef\xbb\xbf%s", b"%s\r\n\r\n", b"\xef\xbb\xbf\n%s\n"])
def test_a_byte_order_mark_and_blank_lines_are_no_content(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content % b'{"query_id": 1, "candidates": [2]}')
    assert storage.read_json(path) == {"query_id": 1, "candidates": [2]}
    assert storage.read_row(path, Pool) == pool(1, [2])
    path.write_bytes(content % b'a: "\xc3\xbc"')
    assert storage.read_yaml(path, "a file") == {"a": "ü"}
    path.write_bytes(content % b"a,b\n1,2")
    assert [cells for _, cells in storage.read_csv(path)] == [["a", "b"], ["1", "2"]]


PROBLEMS = [
    ('{"query_id": 1}', r"'candidates': missing"),
    ('{"query_id": 1, "candidates": [2], "colour": 3}', r"'colour': unknown key"),
    ('{"query_id": "one", "candidates": [2]}', r"'query_id': Input should be a valid integer"),
    ('{"query_id": "1", "candidates": [2]}', r"'query_id': Input should be a valid integer"),  # text is no number
    ('{"query_id": true, "candidates": [2]}', r"'query_id': Input should be a valid integer"),  # nor is a truth value
    ('{"query_id": 1, "candidates": [2, "x"]}', r"'candidates\.1': Input should be a valid integer"),
    ('{"query_id": 1, "candidates": [2, 2]}', r"'row': .*must not repeat"),
    ("", r"'row': Invalid JSON"),
    ('{"query_id": 1, "candi', r"'row': Invalid JSON"),
]


@pytest.mark.parametrize(("line", "key"), PROBLEMS)
def test_a_broken_row_is_named_by_file_line_and_key(tmp_path: Path, line: str, key: str) -> None:
    path = tmp_path / "pools.jsonl"
    path.write_text(pool(0, [5]).model_dump_json() + "\n" + line + "\n")
    with pytest.raises(RecordError, match=rf"pools\.jsonl:2: .*{key}"):
        storage.read_rows(path, Pool)
    path.write_text(line)
    with pytest.raises(RecordError, match=rf"pools\.jsonl: .*{key}"):
        storage.read_row(path, Pool)


def test_what_cannot_be_read_says_what_to_do(tmp_path: Path) -> None:
    readers = (lambda path: storage.read_rows(path, Pool), lambda path: storage.read_row(path, Pool), storage.read_json)
    for read in (*readers, storage.read_arrays):
        with pytest.raises(RecordError, match="none"):
            read(tmp_path / "none")
        with pytest.raises(RecordError):
            read(tmp_path)
    path = tmp_path / "p.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    for read in readers:
        with pytest.raises(RecordError, match=r"p\.jsonl"):
            read(path)


def test_json_is_sorted_and_refuses_nan(tmp_path: Path) -> None:
    storage.write_json(tmp_path / "a.json", {"b": 1, "a": [0.1]})
    storage.write_json(tmp_path / "b.json", {"a": [0.1], "b": 1})
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert storage.read_json(tmp_path / "a.json") == {"a": [0.1], "b": 1}
    with pytest.raises(ValueError):
        storage.write_json(tmp_path / "c.json", {"a": float("nan")})
    assert not (tmp_path / "c.json").exists()


def test_arrays_survive_the_round_trip(tmp_path: Path) -> None:
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3).T, "b": np.array([], dtype=np.int64)}
    storage.write_arrays(tmp_path / "a.safetensors", arrays)
    read = storage.read_arrays(tmp_path / "a.safetensors")
    assert read.keys() == arrays.keys()
    for name, array in arrays.items():
        assert read[name].dtype == array.dtype
        assert np.array_equal(read[name], array)
    (tmp_path / "bad.safetensors").write_bytes(b"nonsense")
    with pytest.raises(RecordError):
        storage.read_arrays(tmp_path / "bad.safetensors")
