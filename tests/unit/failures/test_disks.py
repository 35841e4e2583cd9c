"""A write that the machine refuses: old content stays, no temporary file remains, and the message names the file."""

from __future__ import annotations

import errno
import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import embedding_arrays, example

from lever_pipe.__main__ import main
from lever_pipe.base import atomic, storage
from lever_pipe.base.checkpoints import save_tensors
from lever_pipe.base.errors import MachineError
from lever_pipe.experiment.selector import InitialiseSelectorConfig, Selector

LIMIT = 1 << 16  # bytes of a file
NUMBERS = np.random.default_rng(0).standard_normal(LIMIT)
ROWS = [example(i, question="why? " * 100) for i in range(400)]
Write = Callable[[Path, bool], object]
WRITERS: dict[str, Write] = {
    "rows": lambda path, large: storage.write_rows(path, ROWS if large else ROWS[:1]),
    "json": lambda path, large: storage.write_json(path, NUMBERS.tolist() if large else 1),
    "arrays": lambda path, large: storage.write_arrays(path, {"a": NUMBERS if large else NUMBERS[:3]}),
    "checkpoint": lambda path, large: save_tensors(
        path, {"a": torch.from_numpy(NUMBERS if large else NUMBERS[:3])}, about={}
    ),
    "folder": lambda path, large: atomic.write_folder(
        path, lambda folder: (folder / "file").write_bytes(bytes(NUMBERS.data) if large else b"1")
    ),
}


@contextmanager
def full() -> Iterator[None]:
    """Let the system refuse files beyond `LIMIT`, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", WRITERS)
def test_a_refused_write_leaves_the_former_content_and_is_named(tmp_path: Path, name: str) -> None:
    write, path = WRITERS[name], tmp_path / "target"
    write(path, False)
    former = content(tmp_path)
    with full(), pytest.raises(OSError, match="File too large") as caught:
        write(path, True)
    assert str(MachineError.of(caught.value)).startswith(f"expected to read or write {path}; found file too large")
    assert content(tmp_path) == former
    write(path, True)  # once the machine lets it, the same call succeeds
    assert content(tmp_path) != former


def test_a_stage_without_room_says_so_and_succeeds_when_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage.write_arrays(tmp_path / "embeddings", embedding_arrays(4))
    names = ("embeddings", "selector", "optimiser", "metrics", "manifest")
    config = InitialiseSelectorConfig(preset="p", selector=Selector(width=64), seed=3).model_dump(mode="json")
    words = [*(f"{name}={tmp_path / name}" for name in names), "--spec", json.dumps({"code": "x", "config": config})]
    with full():
        assert main(["initialise_selector", *words]) == 2
    text = capsys.readouterr().err.splitlines()[-1]
    assert text.startswith(f"MachineError: expected to read or write {tmp_path / 'selector'}; found file too large")
    assert [path.name for path in tmp_path.iterdir()] == ["embeddings"]
    assert main(["initialise_selector", *words]) == 0
    assert {path.name for path in tmp_path.iterdir()} == set(names)


def test_debugging_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> object:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x")

    monkeypatch.setattr("lever_pipe.__main__.call_of", fail)
    assert main(["initialise_selector", "--spec", "{}"]) == 2
    with pytest.raises(OSError, match="No space"):
        main(["initialise_selector", "--spec", "{}", "--debug"])


def test_a_problem_of_another_file_keeps_its_name(tmp_path: Path) -> None:
    for source in ("elsewhere", 7):
        with (
            pytest.raises(OSError, match="no") as caught,
            atomic.blamed_on(tmp_path / "target", tmp_path / ".target.tmp"),
        ):
            raise OSError(errno.EACCES, "no", source)
        assert caught.value.filename == source
