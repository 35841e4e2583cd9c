from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_lines import line, sealed

from lever_pipe.__main__ import main
from lever_pipe.base import atomic
from lever_pipe.commands.ledger_tools import merge
from lever_pipe.lvlms.asking.ledger import Ledger

KEY = "ab" * 32
OTHER = "cd" * 32
THIRD = "ef" * 32
RED = {"tokens": [7, 2], "text": "red", "token_log_probs": [-0.5, -0.25], "scores": {"7 2": [-0.5, -0.25]}}
BLUE = {"tokens": [8, 2], "text": "blue", "token_log_probs": [-1.5, -0.125], "beam_score": -1.625}

# One answer of a model: its rows, whole or in part, are the same in all files.
TRUTH = {f"{number:064x}": {**RED, "text": str(number), "scores": {"1": [-1.0], "2": [-2.0]}} for number in range(6)}


def write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def rows_of(folder: Path) -> dict[str, Any]:
    ledger = Ledger(folder)
    return {key: ledger.get(key) for key in list(ledger)}


def messages(capsys: pytest.CaptureFixture[str], *words: object, status: int = 0) -> list[str]:
    """Return the lines that a ledger command prints."""
    assert main(["ledger", *map(str, words)]) == status
    return capsys.readouterr().out.splitlines()


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Return the one line that a refused ledger command prints."""
    assert main(["ledger", *map(str, words)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_a_merge_keeps_the_rows_and_merging_again_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "b.jsonl", line(OTHER, BLUE), line(KEY, RED), '{"key": "torn')
    write(tmp_path / "c.jsonl", line(KEY, {"scores": {"9": [-3.0]}}))
    write(tmp_path / "d.jsonl")  # its writer was killed before the first byte
    before = rows_of(tmp_path)
    lines = messages(capsys, "merge", tmp_path)
    assert rows_of(tmp_path) == before
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("0-merged-")
    assert lines == [f"{path}: 2 rows", "files removed: 3; grown meanwhile, so kept: 0"]
    stored = [json.loads(text) for text in path.read_text().splitlines()]
    assert [row["key"] for row in stored] == sorted(before)
    assert [list(row) for row in stored] == [
        ["key", *sorted(row.keys() - {"key", "sha256"}), "sha256"] for row in stored
    ]
    state = path.stat()
    lines = messages(capsys, "merge", tmp_path)
    assert lines[0] == f"{path}: 2 rows"
    assert names(tmp_path) == [path.name]
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (state.st_ino, state.st_mtime_ns)


@given(data=st.data())
def test_however_rows_are_spread_the_merge_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    parts = [(key, {name: value}) for key, row in TRUTH.items() for name, value in row.items() if name != "scores"]
    parts += [(key, {"scores": {name: [-float(name)]}}) for key in TRUTH for name in ("1", "2")]
    again = data.draw(st.lists(st.sampled_from(parts), max_size=10))
    order = data.draw(st.permutations(parts + again))
    homes = data.draw(st.lists(st.integers(0, 3), min_size=len(order), max_size=len(order)))
    folder = tmp_path_factory.mktemp("spread")
    for home in {*homes}:
        write(
            folder / f"{home}.jsonl",
            *(line(*part) for part, location in zip(order, homes, strict=True) if location == home),
        )
    assert rows_of(folder) == TRUTH
    merged = merge(folder)
    assert rows_of(folder) == TRUTH
    assert len(merged.removed) == len({*homes})
    whole = write(tmp_path_factory.mktemp("whole") / "a.jsonl", *(line(*item) for item in TRUTH.items()))
    assert merged.target.read_bytes() == merge(whole.parent).target.read_bytes()


def test_what_was_met_first_stays_first_next_to_a_file_that_grew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "0a.jsonl", line(KEY, {"text": "red"}))
    running = write(tmp_path / "0b.jsonl", line(KEY, {"text": "blue"}))
    grow_while_merging(monkeypatch, running, line(OTHER, BLUE))
    assert merge(tmp_path).stayed == [running]
    assert rows_of(tmp_path) == {KEY: {"text": "red"}, OTHER: BLUE}


def grow_while_merging(monkeypatch: pytest.MonkeyPatch, path: Path, text: str) -> None:
    """Append to a file after it was read and before it would be removed."""
    write_file = atomic.write_file

    def grow(*arguments: Any) -> None:
        with path.open("a") as handle:
            handle.write(text)
        write_file(*arguments)

    monkeypatch.setattr(atomic, "write_file", grow)


def test_files_that_grow_or_appear_while_merging_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = write(tmp_path / "a.jsonl", line(KEY, RED))
    running = write(tmp_path / "b.jsonl", line(OTHER, BLUE)[:-9])  # in the middle of a line
    for path, text in ((running, line(OTHER, BLUE)[-9:]), (tmp_path / "new.jsonl", line(THIRD, BLUE))):
        grow_while_merging(monkeypatch, path, text)
    merged = merge(tmp_path)
    assert (merged.removed, merged.stayed) == ([done], [running])
    assert names(tmp_path) == sorted([merged.target.name, "b.jsonl", "new.jsonl"])
    assert rows_of(tmp_path) == {KEY: RED, OTHER: BLUE, THIRD: BLUE}


def test_a_file_that_grows_at_the_last_moment_stays_under_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = write(tmp_path / "a.jsonl", line(KEY, RED))
    rename = Path.rename

    def late(path: Path, target: Path) -> Path:
        with path.open("a") as handle:
            handle.write(line(OTHER, BLUE))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", late)
    assert merge(tmp_path).stayed == [running]
    assert not running.exists()
    assert rows_of(tmp_path) == {KEY: RED, OTHER: BLUE}


def test_a_file_that_another_merge_took_is_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.jsonl", line(KEY, RED))
    sync = atomic.sync_folder
    monkeypatch.setattr(atomic, "sync_folder", lambda folder: (sync(folder), path.unlink()))
    assert merge(tmp_path).stayed == []
    assert rows_of(tmp_path) == {KEY: RED}


def test_merging_without_pause_loses_no_row_of_running_jobs(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from lever_pipe.lvlms.asking.ledger import Ledger\n"
        "folder, job = Path(sys.argv[1]), int(sys.argv[2])\n"
        "ledger = Ledger(folder)\n"
        "for i in range(100 * job, 100 * job + 200):\n"
        "    ledger.put(f'{i:064x}', {'text': str(i), 'scores': {str(job): [-1.0]}})\n"
        "    if i % 5 == 4: ledger.flush(); time.sleep(0.005)\n"
        "    while i == 100 * job + 100 and not list(folder.glob('0-merged-*')): time.sleep(0.01)\n"
    )
    jobs = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path), str(job)]) for job in range(3)]
    while any(job.poll() is None for job in jobs):
        if list(tmp_path.glob("*.jsonl")):
            merge(tmp_path)
    assert [job.wait() for job in jobs] == [0, 0, 0]
    rows = rows_of(tmp_path)
    assert len(rows) == 100 * 2 + 200
    for i in range(len(rows)):
        writers = [job for job in range(3) if 100 * job <= i < 100 * job + 200]
        assert rows[f"{i:064x}"] == {"text": str(i), "scores": {str(job): [-1.0] for job in writers}}


KILL = """
import os, signal, sys
from pathlib import Path
from lever_pipe.commands.ledger_tools import merge
owner = {"fsync": os, "replace": Path, "rename": Path, "unlink": Path}[sys.argv[2]]
real, left = getattr(owner, sys.argv[2]), int(sys.argv[3])
def step(*arguments):
    global left
    left -= 1
    if left < 0: os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)
setattr(owner, sys.argv[2], step)
merge(Path(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("call", "after"),
    [("fsync", 0), ("replace", 0), ("fsync", 1), ("rename", 0), ("rename", 1), ("unlink", 1), ("unlink", 2)],
)
def test_a_merge_killed_at_any_step_loses_nothing(tmp_path: Path, call: str, after: int) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    for number, (key, row) in enumerate(islice(TRUTH.items(), 4)):
        write(whole / f"{number // 2}.jsonl", *([line(key, row)] if number % 2 else [line(key, row), line(KEY, RED)]))
    shutil.copytree(whole, folder)
    done = subprocess.run([sys.executable, "-c", KILL, str(folder), call, str(after)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert rows_of(folder) == rows_of(whole)
    assert merge(folder).target.read_bytes() == merge(whole).target.read_bytes()
    assert len(list(folder.glob("*.jsonl"))) == 1


@pytest.mark.parametrize("bad", [sealed("{broken"), line(OTHER, {"beam_score": float("inf")})])
def test_what_cannot_be_merged_is_refused_and_nothing_is_touched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bad: str
) -> None:
    write(tmp_path / "a.jsonl", line(KEY, RED), bad, bad)
    write(tmp_path / "b.jsonl", line(THIRD, BLUE))
    text = refused(capsys, "merge", tmp_path)
    first = f"problems: 2, the first: {tmp_path}/a.jsonl:2: expected a ledger row with a key; found "
    found = first if "broken" in bad else "Out of range float values"
    assert text.startswith(f"DataError: {tmp_path}: expected ")
    assert f"; found {found}" in text
    assert names(tmp_path) == ["a.jsonl", "b.jsonl"]


def test_no_ledger_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "missing"
    assert f"{missing}: expected a folder with ledger files (*.jsonl); found no folder" in refused(
        capsys, "merge", missing
    )
    assert "found no such file" in refused(capsys, "merge", tmp_path)
    assert not missing.exists()


def test_a_merge_is_on_disk_before_a_file_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    sync, unlink = os.fsync, Path.unlink
    monkeypatch.setattr(os, "fsync", lambda descriptor: (steps.append("sync"), sync(descriptor)))
    monkeypatch.setattr(Path, "unlink", lambda path: (path.suffix == ".jsonl" and steps.append("gone"), unlink(path)))
    write(tmp_path / "a.jsonl", line(KEY, RED))
    merge(tmp_path)
    assert steps == ["sync", "sync", "gone"]  # the content, the folder that names it, the old file


def test_damaged_lines_are_left_out_on_demand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.jsonl", line(KEY, RED), line(OTHER, BLUE).replace("blue", "blub"), line(THIRD, BLUE))
    assert "problems: 1, the first" in refused(capsys, "merge", tmp_path)
    assert path.exists()
    lines = messages(capsys, "merge", tmp_path, "--drop")
    assert lines[0].startswith(
        f"left out: {path}:2: expected a ledger row with the digest of its content; found another"
    )
    assert rows_of(tmp_path) == {KEY: RED, THIRD: BLUE}
