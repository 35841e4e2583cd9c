from __future__ import annotations

import os
from pathlib import Path

import pytest
from finished_work import a_store, entry_of, stored_work, tree, weights_of

from lever_pipe.__main__ import main
from lever_pipe.runtime.store import Store, bytes_of


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store of three jobs in a working directory with a configuration that names it; job 2 was used last."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("store: {folder: kept/here, max_gb: 0.5}\n")
    store = a_store(Path("kept/here"))
    for number in range(3):
        stored_work(store, tmp_path / str(number), number)
        os.utime(entry_of(store, number), (1e9 + number, 1e9 + number))
    return store


def messages(capsys: pytest.CaptureFixture[str], *words: object, status: int = 0) -> str:
    assert main(["store", *map(str, words)]) == status
    captured = capsys.readouterr()
    return captured.err if status == 2 else captured.out


def table_of(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, str]:
    return dict(line.split() for line in messages(capsys, *words).splitlines())


def test_stats_count_what_there_is(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    (store.folder / "ledger").mkdir()
    (store.folder / "ledger" / "a.jsonl").write_bytes(b"x" * 1234)
    assert table_of(capsys, "stats") == {
        "folder": "kept/here",
        "entries": "3",
        "bytes": f"{sum(bytes_of(entry_of(store, number)) for number in range(3)):,}",
        "ledger_bytes": "1,234",
        "max_bytes": "500,000,000",
    }


def test_verify_tells_one_line_a_problem_and_gc_removes_it(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert messages(capsys, "verify").startswith("folder ")
    weights, other = weights_of(store, 1), weights_of(store, 2)
    weights.write_bytes(bytes(3000))
    other.unlink()
    before = tree(store.folder)
    lines = messages(capsys, "verify", status=1).splitlines()
    assert {line.split(":")[0] for line in lines[:2]} == {str(other), str(weights)}
    assert "lever-pipe store gc" in lines[0]
    assert tree(store.folder) == before
    assert messages(capsys, "gc").count("removed: kept/here/") == 2
    assert table_of(capsys, "verify")["entries"] == "1"


def test_gc_keeps_to_the_bound(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    limit = 2 * bytes_of(entry_of(store, 0))
    for max_gb, removed, entries in ((0.5, 0, 3), (limit / 1e9, 1, 2), (1e-9, 2, 0)):
        Path("config.yaml").write_text(f"store: {{folder: kept/here, max_gb: {max_gb:.12f}}}\n")
        found = table_of(capsys, "gc")
        assert (found["removed"], found["entries"]) == (str(removed), str(entries))
        assert entries < 2 or entry_of(store, 2).exists()  # used last


def test_the_folder_comes_from_words_or_configuration(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    stored_work(a_store(Path("other")), Path("made"), 7)
    assert table_of(capsys, "stats", "other")["entries"] == "1"
    Path("config.yaml").unlink()
    assert table_of(capsys, "stats", "other")["max_bytes"] == "20,000,000,000"
    for words in (("gc",), ("verify", "config.yaml"), ("stats", "nowhere")):
        assert "expected a store of finished work; found none" in messages(capsys, *words, status=2)
