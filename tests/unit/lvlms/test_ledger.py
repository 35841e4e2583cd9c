from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_lines import line, sealed, written

from lever_pipe.base.errors import RecordError
from lever_pipe.lvlms.asking.ledger import (
    ROWS_PER_CHUNK,
    Ledger,
    read_files,
    register,
)

KEY = "ab" * 32
OTHER = "cd" * 32


log_probs = st.lists(st.floats(max_value=0, allow_nan=False, allow_infinity=False), max_size=3)
rows = st.fixed_dictionaries(
    {},
    optional={
        "text": st.sampled_from(["", "red", "é", "two\nlines", "\u2028", "\ud800", "\0"]),
        "token_log_probs": log_probs,
        "scores": st.dictionaries(st.sampled_from(["1", "1 2", "3"]), log_probs),
    },
)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jsonl"))


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Run a script that begins with a Ledger of its first argument as `ledger`."""
    head = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom lever_pipe.lvlms.asking.ledger import Ledger\n"
        "ledger = Ledger(Path(sys.argv[1]))\n"
    )
    command = [sys.executable, "-c", head + script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def once(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Do something in the middle of the next flush, when its bytes are in the file."""
    sync = os.fsync

    def act(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", sync)
        action()

    monkeypatch.setattr(os, "fsync", act)


def test_disagreements_are_counted_and_the_first_file_wins(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(line(KEY, {"text": "red", "scores": {"1": [-1.0]}}))
    (tmp_path / "b.jsonl").write_text(line(KEY, {"text": "blue", "scores": {"1": [-1.5]}}))
    ledger = Ledger(tmp_path)
    assert ledger.disagreements == 2  # the text and one score
    assert ledger.get(KEY) == {"text": "red", "scores": {"1": [-1.0]}}


@given(cut=st.integers(min_value=0, max_value=400))
def test_any_cut_of_a_file_loses_only_the_torn_row(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    folder = tmp_path_factory.mktemp("cut")
    with written(folder) as ledger:
        for number in range(5):
            ledger.put(f"{number:064x}", {"text": "é"})
    path = files(folder)[0]
    retained = path.read_bytes()[:cut]
    path.write_bytes(retained)
    assert len(Ledger(folder)) == retained.count(b"\n")


@pytest.mark.parametrize("bad", ["{broken", "[1, 2]", '{"text": "no key"}', "3", '{"key": 3}', '{"key": ["a"]}'])
def test_a_broken_line_inside_a_file_is_named(tmp_path: Path, bad: str) -> None:
    good = line(KEY, {"text": "red"})
    for expected, text in (("the digest of its content; found no digest", bad + "\n"), ("a key; found ", sealed(bad))):
        (tmp_path / "a.jsonl").write_text(f"{good}{text}{good}")
        with pytest.raises(RecordError, match=rf"a\.jsonl:2: expected a ledger row with {expected}"):
            Ledger(tmp_path)


@given(stored=st.dictionaries(st.integers(0, 9).map("{:064x}".format), rows, max_size=5))
def test_whatever_is_put_comes_back(tmp_path_factory: pytest.TempPathFactory, stored: dict[str, object]) -> None:
    folder = tmp_path_factory.mktemp("round")
    with written(folder) as ledger:
        for key, row in stored.items():
            ledger.put(key, row)
    again = Ledger(folder)
    assert {key: again.get(key) for key in stored} == stored
    assert len(again) == len(stored)


def test_a_writer_that_is_killed_keeps_what_it_flushed(tmp_path: Path) -> None:
    script = (
        "for i in range(10**9):\n"
        "    ledger.put(f'{i:064x}', {'text': 'x' * 9999})\n"
        "    if i % 10 == 9: ledger.flush(); print(i, flush=True)\n"
    )
    job = start(script, tmp_path)
    assert job.stdout
    for _ in range(5):
        job.stdout.readline()
    job.kill()
    numbers = [49, *map(int, job.communicate()[0].splitlines())]
    assert job.returncode == -signal.SIGKILL
    survivor = Ledger(tmp_path)
    assert all(f"{i:064x}" in survivor for i in range(numbers[-1] + 1))


@pytest.mark.parametrize("first", [True, False], ids=["first chunk", "later chunk"])
def test_after_a_failed_write_no_line_follows_the_torn_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    def full() -> None:
        (path,) = files(tmp_path)
        os.truncate(path, path.stat().st_size - 7)
        raise OSError(errno.ENOSPC, "No space left on device")

    with written(tmp_path) as ledger:
        ledger.put(KEY, {"text": "red"})
        if not first:
            ledger.flush()
        ledger.put(OTHER, {"text": "blue"})
        once(monkeypatch, full)
        ledger.flush()
    again = Ledger(tmp_path)
    assert (again.get(KEY), again.get(OTHER)) == ({"text": "red"}, {"text": "blue"})


def test_without_room_rows_stay_in_memory_and_are_written_when_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(number: int) -> Any:
        raise OSError(number, os.strerror(number))

    n = 2 * ROWS_PER_CHUNK + 1
    with written(tmp_path) as ledger, monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: full(errno.ENOSPC))
        register(tmp_path, "0" * 16, {"code": "x"})
        for i in range(n):
            ledger.put(f"{i:064x}", {"text": str(i)})
        ledger.flush()
        assert [ledger.get(f"{i:064x}") for i in range(n)] == [{"text": str(i)} for i in range(n)]
        assert caplog.text.count("answers stay in memory until they can be written: [Errno 28]") == 1
        patch.setattr(os, "fsync", lambda _: full(errno.EIO))
        with pytest.raises(OSError, match="Input/output"):
            ledger.flush()
    again = Ledger(tmp_path)
    assert {key: again.get(key) for key in ledger} == {f"{i:064x}": {"text": str(i)} for i in range(n)}


@pytest.mark.parametrize("gone", ["the file", "the folder"])
def test_a_writer_goes_on_where_its_file_was_taken_away(tmp_path: Path, gone: str) -> None:
    folder = tmp_path / "ledger"
    with written(folder) as ledger:
        ledger.put(KEY, {"text": "red"})
        ledger.flush()
        path = files(folder)[0]
        path.unlink()
        if gone == "the folder":
            folder.rmdir()
        ledger.put(OTHER, {"text": "blue"})
    assert path not in files(folder)  # a name identifies one content for all readers
    assert Ledger(folder).get(OTHER) == {"text": "blue"}


@pytest.mark.parametrize("target", ["a.jsonl", "b.jsonl"], ids=["a new file", "a file that was read"])
def test_a_reader_finds_rows_that_a_merge_moves_meanwhile(tmp_path: Path, target: str) -> None:
    lines = {name: line(name * 64, {"text": name}) for name in "bcd"}
    for name, text in lines.items():
        (tmp_path / f"{name}.jsonl").write_text(text)
    reader = read_files(tmp_path)
    assert next(reader) == (tmp_path / "b.jsonl", lines["b"].encode())
    (tmp_path / "new").write_text("".join(lines.values()))
    (tmp_path / "new").rename(tmp_path / target)  # sorts no later than the files already read
    for path in files(tmp_path):
        if path.name != target:
            path.unlink()
    assert list(reader) == [(tmp_path / target, "".join(lines.values()).encode())]


def test_a_line_that_a_kill_cut_off_is_skipped_and_the_next_run_writes_it(tmp_path: Path) -> None:
    script = (
        "def cut(descriptor):\n"
        "    os.truncate(descriptor, os.fstat(descriptor).st_size - 7)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "ledger.put('ab' * 32, {'text': 'red'}); ledger.flush()\n"
        "os.fsync = cut\n"
        "ledger.put('cd' * 32, {'text': 'blue'}); ledger.flush()\n"
    )
    job = start(script, tmp_path)
    job.communicate()
    assert job.returncode == -signal.SIGKILL
    with written(tmp_path) as survivor:
        assert (survivor.get(KEY), survivor.get(OTHER)) == ({"text": "red"}, None)
        survivor.put(OTHER, {"text": "blue"})
    assert Ledger(tmp_path).get(OTHER) == {"text": "blue"}
    assert len(files(tmp_path)) == 2
