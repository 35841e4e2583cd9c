from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from lever_pipe.base.checkpoints import load_tensors, require_same_tensors, save_tensors
from lever_pipe.base.errors import CheckpointError


def test_tensors_and_header_survive_the_round_trip(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6.0).reshape(2, 3).T, "b": torch.tensor(0.1, dtype=torch.float64)}
    save_tensors(tmp_path / "c.safetensors", tensors, about={"stage": "rce", "epoch": 3})
    loaded, about = load_tensors(tmp_path / "c.safetensors")
    assert about == {"stage": "rce", "epoch": 3}
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    assert loaded["b"].dtype == torch.float64


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (str(tmp_path / "exploded"),)

    (tmp_path / "c.safetensors").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(CheckpointError):
        load_tensors(tmp_path / "c.safetensors")
    torch.save({"a": torch.ones(1)}, tmp_path / "d.safetensors")
    with pytest.raises(CheckpointError):
        load_tensors(tmp_path / "d.safetensors")
    assert not (tmp_path / "exploded").exists()


def test_all_differences_are_told_in_one_message(tmp_path: Path) -> None:
    expected = {"a": torch.ones(2, 3), "b": torch.ones(1), "c": torch.ones(4)}
    found = {"a": torch.ones(3, 2), "c": torch.ones(4), "d": torch.ones(1)}
    with pytest.raises(CheckpointError) as problem:
        require_same_tensors(tmp_path / "c", found, expected)
    assert "expected the 3 tensors of the configured architecture; found " in str(problem.value)
    assert "missing b; extra d; a is torch.float32 [3, 2], expected torch.float32 [2, 3]." in str(problem.value)
    require_same_tensors(tmp_path / "c", expected, expected)
