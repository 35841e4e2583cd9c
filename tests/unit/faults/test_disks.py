"""Real disks that are full, read-only or forbidden: what was there stays, and a message names file and remedy."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from private_mounts import python

from lever_pipe.__main__ import main
from lever_pipe.base import atomic, os_faults
from lever_pipe.base.errors import LeverPipeError

SCRIPT = Path(__file__).with_name("staged_disks.py")
Found = dict[str, Any]
WRITERS = ("rows", "json", "arrays", "checkpoint", "folder", "folder by a library")
NO_ROOM = "expected to read or write {}; found no space left on device (ENOSPC)"


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Return what every scenario found."""
    folder = tmp_path_factory.mktemp("disks")
    done = python(SCRIPT, str(folder))
    assert done.returncode == 0, done.stderr[-3000:]
    return {"folder": str(folder), **json.loads(done.stdout)}


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        *((f"full: {name}", NO_ROOM.format(f"{{}}/{name}/target")) for name in WRITERS),
        ("full: not one block", NO_ROOM.format("{}/block/card")),
        ("full: no inode", NO_ROOM.format("{}/inode/card")),
        ("full: ledger", "expected to read or write"),
        ("read-only: a file", "expected to read or write {}/ro/card; found read-only file"),
        ("limit: file size", "expected to read or write {}/size/card; found file too large (EFBIG)"),
        ("limit: descriptors", "expected to read or write {}/descriptors/card; found too many open files"),
        ("limit: name", "expected to read or write {}/name/xxx"),
    ],
)
def test_a_refused_write_leaves_the_former_file_and_is_named(staged: Found, scenario: str, expected: str) -> None:
    found = staged[scenario]
    assert found["message"].startswith(expected.format(staged["folder"])), found["message"]
    assert ".tmp" not in found["message"]  # the file that the user knows, not the one beside it
    assert found["former"] is True
    assert found["litter"] == []
    assert found["later"] is True  # once the machine lets it, the same call succeeds
    assert not [name for name in found["after"] if ".tmp" in name]


def test_what_is_left_is_told_in_bytes_and_inodes(staged: Found) -> None:
    assert "0.0 of 1.0 MiB and " in staged["full: not one block"]["message"]
    assert "of 1.0 MiB and 0 of 3 inodes left in " in staged["full: no inode"]["message"]
    assert "; found 1.0 of 1.0 MiB and 0 of 3 inodes left in " in staged["full: no inode"]["at start"]


def test_a_stage_on_a_disk_that_fills_says_so_and_succeeds_when_run_again(staged: Found) -> None:
    found = staged["full: a stage"]
    assert found["status"] == [2, 2, 0]
    assert found["message"].startswith("MachineError: " + NO_ROOM.format(staged["folder"] + "/stage/metrics"))
    assert found["message"].count("\n") == 1
    assert found["litter"] == []  # neither card nor lock nor a half file
    assert {"selector", "optimiser", "metrics", "card"} <= set(found["after"])


def test_a_full_disk_is_refused_before_the_stage_begins(staged: Found) -> None:
    expected = f"MachineError: expected room to write {staged['folder']}/stage/other/selector; found 0.0"
    assert staged["full: a stage"]["at start"].startswith(expected)


@pytest.mark.parametrize(
    ("scenario", "path", "why"),
    [
        ("read-only: a stage", "ro stage/selector", "ro stage is on a read-only file system. "),
        ("read-only: results beside", "ro beside/disk/new/selector", "ro beside/disk is on a read-only file system. "),
        ("permission: a stage", "permission/selector", "permission is not writable for user "),
    ],
)
def test_results_that_could_not_be_written_are_refused_before_the_stage_begins(
    staged: Found, scenario: str, path: str, why: str
) -> None:
    found, folder = staged[scenario], staged["folder"]
    assert found["status"] == [2]
    expected = (
        f"MachineError: expected {folder}/{path}, or a folder in which it can be written; found no such file, and "
    )
    assert found["message"].startswith(f"{expected}{folder}/{why}")
    assert set(found["after"]) <= {"disk", "embeddings"}


def test_a_missing_input_in_a_folder_of_ones_own_is_no_matter_of_the_machine(tmp_path: Path) -> None:
    os_faults.require_writable([tmp_path / "input", tmp_path / "new" / "deep" / "output"])
    assert list(tmp_path.iterdir()) == []  # looking makes nothing


@pytest.mark.parametrize("number", sorted(os_faults.REFUSALS), ids=errno.errorcode.get)
def test_every_refusal_of_the_system_has_three_parts(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os_faults, "_room", lambda path: f"nothing left for {path}")  # it changes from call to call
    fault = OSError(number, os.strerror(number), "/some/file")
    said = os_faults.named(fault)
    assert isinstance(said, LeverPipeError)
    assert said.expected.startswith("expected ")
    assert "/some/file" in said.expected
    assert errno.errorcode[number] in said.found
    assert said.do.endswith(".")
    monkeypatch.setattr("lever_pipe.__main__.call_of", _raising(fault))
    assert main(["initialise_selector", "--spec", "{}"]) == 2
    assert capsys.readouterr().err == f"MachineError: {said}\n"


def _raising(fault: Exception) -> Callable[..., object]:
    def fail(*_: object) -> object:
        raise fault

    return fail


@pytest.mark.parametrize("fault", [FileNotFoundError(errno.ENOENT, "gone", "x"), OSError("no number")])
def test_a_fault_that_may_be_one_of_code_keeps_its_traceback(fault: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lever_pipe.__main__.call_of", _raising(fault))
    with pytest.raises(OSError, match=str(fault.strerror or "no number")) as caught:
        main(["initialise_selector", "--spec", "{}"])
    assert caught.value is fault


def test_debugging_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lever_pipe.__main__.call_of", _raising(OSError(errno.ENOSPC, "full", "x")))
    with pytest.raises(OSError, match="full"):
        main(["initialise_selector", "--spec", "{}", "--debug"])


def test_a_fault_of_another_file_keeps_its_name(tmp_path: Path) -> None:
    path = tmp_path / "target"
    for source in ("elsewhere", 7):
        with pytest.raises(OSError, match="no") as caught, atomic.blamed_on(path, tmp_path / ".target.tmp"):
            raise OSError(errno.EACCES, "no", source)
        assert caught.value.filename == source
    with pytest.raises(ValueError, match="wrong"), atomic.blamed_on(path, tmp_path / ".target.tmp"):
        raise ValueError("wrong")
