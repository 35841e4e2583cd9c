"""Words that name nothing of the kind end in status 2 and a message, never a traceback, and nothing is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from lever_pipe.__main__ import main

# All below the test's folder: some tools write and remove files at the given paths.
WORDS = (
    "nowhere", "", "empty", "bytes.csv", "list.json", "run.json", "folder", "loop", "loop/x", "empty/x", "a\nb",
    "$(touch pwned)", "é\U0001f600", "x" * 5000, "\udcff", "table:1:Column", "t.csv:1:z", "t.csv:99:a", "t.csv:-1:a",
    "t.csv:x=1|:b", "::", ":", "bytes.csv:1:a", "empty:1:a", "preset~world/rce/seed~99/epoch~1", "baseline/nobody",
)  # fmt: skip
CALLS: tuple[tuple[str, ...], ...] = (
    *(("trace", "@"), ("trace", "table:1:Column", "--results", "@")),
    *(("compare", "@", "folder"), ("compare", "folder", "@")),
    *(("store", "stats", "@"), ("store", "verify", "@"), ("store", "gc", "@")),
    *(("ledger", "merge", "@"), ("ledger", "@")),
    *(("plan", "--configfile", "@"), ("why", "train_rce_epoch", "--configfile", "@")),
    ("why", "train_rce_epoch", "--config", "@"),
    *(("store", "@"), ("why", "")),
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("empty").touch()
    Path("bytes.csv").write_bytes(b'\xff\xfe{"a":')
    Path("list.json").write_text("[1]")
    Path("run.json").write_text('{"tables": 5}')
    Path("t.csv").write_text("a,b\n1,2\n")
    Path("folder").mkdir()
    Path("folder/other").touch()
    Path("loop").symlink_to("loop")
    return tmp_path


def test_no_word_ends_in_a_traceback(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before, wrong = sorted(folder.rglob("*")), {}
    for call in CALLS:
        for word in WORDS:
            words = [word if each == "@" else each for each in call]
            try:
                status: object = main(words)
            except SystemExit as end:
                status = end.code
            except Exception as error:  # noqa: BLE001 - told below
                status = repr(error)
            text = capfd.readouterr()
            if status != 2 or "Traceback" in text.err or not text.err.strip():
                wrong[str(words)[:100]] = (status, text.err[-200:])
    assert wrong == {}
    assert sorted(folder.rglob("*")) == before
