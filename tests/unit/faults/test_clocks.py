"""Clocks that jump: a lock belongs to who lives, whatever its time says, and nobody waits for a time to come."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from private_mounts import ROOT

from lever_pipe.base import storage
from lever_pipe.lvlms.asking.ledger import Ledger
from lever_pipe.runtime import ownership
from lever_pipe.runtime.ownership import Times, lock_of, owned, owner_of

HOUR_S = 3600.0
FAST = Times(poll_s=0.02)
HOLDER = """
import sys, time
from pathlib import Path
from lever_pipe.runtime.ownership import owned
with owned(Path(sys.argv[1])):
    print("owns", flush=True)
    time.sleep(60)
"""


@contextmanager
def holder(card: Path) -> Iterator[subprocess.Popen[str]]:
    """Let another process own an artefact."""
    words = [sys.executable, "-c", HOLDER, str(card)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "owns\n"
        try:
            yield process
        finally:
            process.kill()


def shift(lock: Path, seconds: float) -> None:
    then = time.time() + seconds
    os.utime(lock, (then, then))


@pytest.mark.parametrize("jump_s", [-HOUR_S, HOUR_S, 10 * 365 * 24 * HOUR_S], ids=["past", "future", "years ahead"])
def test_a_lock_of_any_time_is_its_living_owners_and_falls_with_him(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    card = tmp_path / "run.json"
    entered: list[bool] = []
    met = threading.Event()
    monkeypatch.setattr(
        ownership, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda s: met.set() or time.sleep(s))
    )

    def wait() -> None:
        with owned(card, times=FAST) as waited:
            entered.append(waited)

    waiting = threading.Thread(target=wait, daemon=True)
    with holder(card) as process:
        shift(lock_of(card), jump_s)
        waiting.start()
        assert met.wait(60)
        owner = owner_of(card)
        assert owner is not None
        assert (owner.pid, entered) == (process.pid, [])
        process.kill()
        process.wait()
        waiting.join(60)
    assert entered == [True]
    assert owner_of(card) is None


@pytest.mark.parametrize("jump_s", [-HOUR_S, HOUR_S])
def test_what_was_written_by_another_clock_is_read_and_replaced(tmp_path: Path, jump_s: float) -> None:
    path = tmp_path / "card"
    storage.write_json(path, 1)
    shift(path, jump_s)
    assert storage.read_json(path) == 1
    storage.write_json(path, 2)
    assert storage.read_json(path) == 2
    assert abs(path.stat().st_mtime - time.time()) < 60  # the time of the file that took its place
    with Ledger(tmp_path / "ledger") as ledger:
        ledger.put("a", {"text": "red"})
    (rows,) = (tmp_path / "ledger").iterdir()
    shift(rows, jump_s)
    assert Ledger(tmp_path / "ledger").get("a") == {"text": "red"}
