"""Writers that are killed at any moment: the former content or the whole later one, and no litter after the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from private_mounts import ROOT

from lever_pipe.base import atomic, storage

N_KILLS = 100  # of each kind
# A process that writes one content after the other, all of one letter, as fast as it can. It prints when the first is
# there, and is a fork of one that has imported all already: 200 interpreters would take minutes.
WRITER = """
import os, signal, sys
from pathlib import Path
from lever_pipe.base import atomic
target, kind = Path(sys.argv[1]), sys.argv[2]

def in_parts(write, letter):
    for _ in range(8):
        write(letter * 8192)

def fill(folder, letter):
    for name in ("one", "two"):
        with (folder / name).open("wb") as handle:
            in_parts(handle.write, letter)

def write(letter):
    if kind == "file":
        atomic.write_file(target, lambda handle: in_parts(handle.write, letter))
    else:
        atomic.write_folder(target, lambda folder: fill(folder, letter))

for _ in sys.stdin:
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as the entry unwinds
        for turn in range(1000000):
            write(b"ba"[turn % 2:][:1])
            if turn == 0:
                print(os.getpid(), flush=True)
    os.waitpid(child, 0)
    print("dead", flush=True)
"""


def content(target: Path) -> set[bytes]:
    paths = [target / "one", target / "two"] if target.is_dir() else [target]
    return {path.read_bytes() for path in paths}


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_writer_leaves_the_former_content_or_the_later(
    tmp_path: Path, kind: str, signal_number: signal.Signals
) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    target = folder / "target"
    whole = ({b"a" * 65536}, {b"b" * 65536})
    if kind == "file":
        target.write_bytes(b"a" * 65536)
    else:
        target.mkdir()
        for name in ("one", "two"):
            (target / name).write_bytes(b"a" * 65536)
    delays = np.random.default_rng(0).uniform(0.002, 0.012, N_KILLS // 2)
    command = [sys.executable, "-c", WRITER, str(target), kind]
    found: Counter[str] = Counter()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        for delay in delays:
            parent.stdin.write("\n")
            parent.stdin.flush()
            child = int(parent.stdout.readline())
            time.sleep(float(delay))
            os.kill(child, signal_number)
            assert parent.stdout.readline() == "dead\n"
            names = {path.name for path in folder.iterdir()}
            found["half"] += len(names - {"target"})
            assert "target" in names
            assert content(target) in whole
            found["later"] += content(target) == whole[1]
        parent.stdin.close()
    # Each kill hits a writer that has put the later content there, at one of its next writes or before.
    assert found["later"] > 0
    if kind == "file":
        storage.write_text(target, "whole")
    else:
        atomic.write_folder(target, lambda inside: storage.write_text(inside / "one", "whole"))
    assert [path.name for path in folder.iterdir()] == ["target"]


def dead_process() -> int:
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_the_next_writer_removes_what_killed_ones_left_and_nothing_else(tmp_path: Path, kind: str) -> None:
    here = atomic.machine()
    dead, living = dead_process(), os.getppid()
    old = time.time() - atomic.ABANDONED_S - 60
    young, future = old + 3600, time.time() + 10 * atomic.ABANDONED_S
    expected = {
        f".{here}.{dead}.01234567.tmp": (young, False),
        f".{here}.{dead}.01234567.other": (old, True),
        f".{here}.{living}.01234567.tmp": (old, True),  # stopped, maybe, but alive
        f".0badcafe.{dead}.01234567.tmp": (young, True),  # a process ID of another machine is no evidence here
        f".0badcafe.{living}.01234567.tmp": (old, False),
        f".0badcafe.{living + 1}.01234567.tmp": (future, True),  # written by a clock that is ahead
        f".{here}.{dead}.tmp": (old, True),
        f"{here}.{dead}.01234567.tmp": (old, True),
        ".a.run.json.owner": (old, True),
    }
    for name, (when, _) in expected.items():
        if kind == "folder":
            (tmp_path / name).mkdir()
            (tmp_path / name / "half").touch()
        else:
            (tmp_path / name).touch()
        os.utime(tmp_path / name, (when, when))
    if kind == "folder":
        atomic.write_folder(tmp_path / "a", lambda inside: storage.write_text(inside / "one", "whole"))
    else:
        storage.write_text(tmp_path / "a", "whole")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"a", *(name for name, (_, stays) in expected.items() if stays)}


def write(folder: Path, text: str) -> None:
    atomic.write_folder(folder, lambda inside: storage.write_text(inside / text, text))


def test_a_file_system_that_cannot_exchange_names_gets_the_later_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "_exchange", lambda *_: False)
    write(tmp_path / "a", "one")
    write(tmp_path / "a", "two")
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["a", "a/two"]


def test_a_folder_that_cannot_take_the_place_gives_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "_exchange", lambda *_: False)
    write(tmp_path / "a", "one")
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if (self / "two").exists():
            raise OSError(28, "No space left on device", str(self), None, str(target))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(OSError, match="No space left") as caught:
        write(tmp_path / "a", "two")
    assert caught.value.filename == str(tmp_path / "a")
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["a", "a/one"]


def test_a_folder_replaces_a_file_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("file")
    write(tmp_path / "a", "one")
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["a", "a/one"]
