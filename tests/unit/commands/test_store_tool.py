from __future__ import annotations

import os
from pathlib import Path

import pytest
from finished_work import a_store, kept, number_of, place_of, tree, weights_of

from lever_pipe.__main__ import main
from lever_pipe.runtime.store import Store

SIZE = 3017  # bytes of a job


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store of three jobs in a working directory with a configuration that names it; job 2 was used last."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("store: {folder: kept/here, max_gb: 0.5}\n")
    store = a_store(Path("kept/here"))
    for number in range(3):
        kept(store, tmp_path / str(number), number, stage=f"stage_{number % 2}")
    for number in range(3):
        os.utime(place_of(store, number), (1e9 + number, 1e9 + number))
    return store


def told(capsys: pytest.CaptureFixture[str], *words: object, status: int = 0) -> str:
    assert main(["store", *map(str, words)]) == status
    return capsys.readouterr().out


def table_of(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, str]:
    return dict(line.split() for line in told(capsys, *words).splitlines())


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["store", *map(str, words)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_stats_count_what_there_is(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    (store.folder / "ledger").mkdir()
    (store.folder / "ledger" / "a.jsonl").write_bytes(b"x" * 1234)
    assert table_of(capsys, "stats") == {
        "folder": "kept/here",
        "entries": "3",
        "files": "12",
        "bytes": f"{3 * SIZE:,}",
        "ledger_bytes": "1,234",
        "max_bytes": "500,000,000",
    }


def test_verify_tells_one_line_a_fault_and_gc_removes_it(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "verify").startswith("folder ")
    weights, other = weights_of(store, 1), number_of(store, 2)
    weights.write_bytes(bytes(3000))
    other.unlink()
    before = tree(store.folder)
    lines = told(capsys, "verify", status=1).splitlines()
    assert {line.split(":")[0] for line in lines[:2]} == {str(other), str(weights)}
    assert "python -m lever_pipe store gc" in lines[0]
    assert tree(store.folder) == before
    assert told(capsys, "gc").count("removed: kept/here/") == 2
    assert table_of(capsys, "verify")["entries"] == "1"


def test_gc_keeps_to_the_bound(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert table_of(capsys, "gc")["removed.entries"] == "0"
    found = table_of(capsys, "gc", "--max-gb", 2 * SIZE / 1e9)
    assert (found["removed.entries"], found["entries"], found["max_bytes"]) == ("1", "2", f"{2 * SIZE:,}")
    assert table_of(capsys, "gc", "--max-gb", f"{2 * SIZE / 1e9 - 1e-9:.9f}")["removed.bytes"] == f"{SIZE:,}"
    assert place_of(store, 2).exists()  # used last
    assert table_of(capsys, "gc", "--max-gb", 0)["entries"] == "0"
    assert store.stats().files == 0


def test_the_folder_comes_from_words_or_configuration(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    other = a_store(Path("other"))
    kept(other, Path("made"), 7)
    assert table_of(capsys, "stats", "other")["entries"] == "1"
    Path("config.yaml").write_text("store: null\n")
    assert table_of(capsys, "stats", "other")["max_bytes"] == "20,000,000,000"
    assert "found store: null" in refused(capsys, "stats")
    Path("config.yaml").unlink()
    assert table_of(capsys, "stats", "other")["entries"] == "1"
    assert ".lever_pipe/store: expected a store of finished work; found no folder" in refused(capsys, "gc")


def test_what_is_no_store_is_refused(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert "found another file" in refused(capsys, "verify", "config.yaml")
    assert "found no folder" in refused(capsys, "stats", "nowhere")
    (store.folder / "VERSION").write_text("9\n")
    for tool in ("stats", "verify", "gc"):
        assert "found '9'" in refused(capsys, tool)
    Path("config.yaml").write_text("store: {folders: a}\n")
    assert main(["store", "stats"]) == 2
    assert "store.folders" in capsys.readouterr().err
    Path("config.yaml").write_text("store: [\n")
    assert main(["store", "stats"]) == 2
    assert "config.yaml: expected YAML" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["gc", "--max-gb", "-1"], ["gc", "--max-gb", "nan"], ["gc", "--max-gb", "x"], []])
def test_words_that_make_no_sense(store: Store, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["store", *words])
    assert end.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
    assert store.stats().entries == 3
