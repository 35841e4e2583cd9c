from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.errors import RecordError
from lever_pipe.ledger import LOG_PROB_TOLERANCE, ROWS_PER_CHUNK, Ledger, writer_name

KEY = "ab" * 32
OTHER = "cd" * 32


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jsonl"))


def test_a_row_comes_back_in_this_and_in_the_next_process(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.put(KEY, {"text": "red", "scores": {"1 2": [-0.5, -0.25]}})
        assert ledger.get(KEY) == {"text": "red", "scores": {"1 2": [-0.5, -0.25]}}
    again = Ledger(tmp_path)
    assert again.get(KEY) == ledger.get(KEY)
    assert again.get(OTHER) is None
    assert (len(again), KEY in again, OTHER in again) == (1, True, False)


def test_rows_reach_the_disk_in_chunks(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for number in range(ROWS_PER_CHUNK - 1):
        ledger.put(f"{number:064x}", {"text": "a"})
    assert files(tmp_path) == []
    ledger.put(KEY, {"text": "a"})
    assert len(Ledger(tmp_path)) == ROWS_PER_CHUNK


def test_flush_forces_rows_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    ledger = Ledger(tmp_path)
    ledger.put(KEY, {"text": "a"})
    ledger.flush()
    ledger.flush()  # nothing queued, nothing to force
    assert len(synced) == 1
    assert len(Ledger(tmp_path)) == 1


def test_new_answers_extend_a_row(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.put(KEY, {"text": "red", "scores": {"1": [-1.0]}})
    with Ledger(tmp_path) as ledger:
        ledger.put(KEY, {"scores": {"2": [-2.0]}})
    merged = Ledger(tmp_path)
    assert merged.get(KEY) == {"text": "red", "scores": {"1": [-1.0], "2": [-2.0]}}
    assert merged.disagreements == 0
    assert len(files(tmp_path)) == 2


def test_a_known_row_is_not_written_again(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.put(KEY, {"text": "red"})
        ledger.put(KEY, {"text": "red"})
    assert files(tmp_path)[0].read_text().count("\n") == 1


def test_the_callers_row_is_not_tied_to_the_ledger() -> None:
    row = {"scores": {"1": [-1.0]}}
    ledger = Ledger(None)
    ledger.put(KEY, row)
    ledger.put(KEY, {"scores": {"2": [-2.0]}})
    assert row == {"scores": {"1": [-1.0]}}


def test_disagreements_are_counted_and_the_first_file_wins(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"key": KEY, "text": "red", "scores": {"1": [-1.0]}}) + "\n")
    (tmp_path / "b.jsonl").write_text(json.dumps({"key": KEY, "text": "blue", "scores": {"1": [-1.5]}}) + "\n")
    ledger = Ledger(tmp_path)
    assert ledger.disagreements == 2  # the text and one score
    assert ledger.get(KEY) == {"text": "red", "scores": {"1": [-1.0]}}


@pytest.mark.parametrize(("gap", "count"), [(0.5, 0), (2.0, 1)])
def test_batch_noise_is_no_disagreement(gap: float, count: int) -> None:
    ledger = Ledger(None)
    ledger.put(KEY, {"scores": {"1": [-1.0]}})
    ledger.put(KEY, {"scores": {"1": [-1.0 - gap * LOG_PROB_TOLERANCE]}})
    assert ledger.disagreements == count


@given(cut=st.integers(min_value=0, max_value=400))
def test_any_cut_of_a_file_loses_only_the_torn_row(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    folder = tmp_path_factory.mktemp("cut")
    with Ledger(folder) as ledger:
        for number in range(5):
            ledger.put(f"{number:064x}", {"text": "é"})
    path = files(folder)[0]
    kept = path.read_bytes()[:cut]
    path.write_bytes(kept)
    survivor = Ledger(folder)
    assert len(survivor) == kept.count(b"\n")
    assert survivor.torn == int(not kept.endswith(b"\n") and bool(kept))


@pytest.mark.parametrize("line", ["{broken", "[1, 2]", '{"text": "no key"}', "3"])
def test_a_broken_line_inside_a_file_is_named(tmp_path: Path, line: str) -> None:
    good = json.dumps({"key": KEY, "text": "red"})
    (tmp_path / "a.jsonl").write_text(f"{good}\n{line}\n{good}\n")
    with pytest.raises(RecordError, match=r"a\.jsonl:2: expected a ledger row"):
        Ledger(tmp_path)


def test_writers_in_several_processes_lose_nothing(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from lever_pipe.ledger import Ledger\n"
        "with Ledger(Path(sys.argv[1])) as l:\n"
        "    for i in range(600): l.put(f'{sys.argv[2]}{i:060d}', {'text': str(i)})\n"
    )
    jobs = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path), f"{job:04d}"]) for job in range(3)]
    assert [job.wait() for job in jobs] == [0, 0, 0]
    assert len(Ledger(tmp_path)) == 1800
    assert len(files(tmp_path)) == 3


def test_writer_names_differ_within_a_process() -> None:
    names = {writer_name() for _ in range(50)}
    assert len(names) == 50
    assert all(f"-{os.getpid()}-" in name for name in names)


def test_memory_only_ledger_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Ledger(None) as ledger:
        ledger.put(KEY, {"text": "red"})
        assert ledger.get(KEY) == {"text": "red"}
    assert list(tmp_path.iterdir()) == []
