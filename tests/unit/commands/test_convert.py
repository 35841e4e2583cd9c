"""Weights of `.bin` files come out as safetensors, names, values and types the same; nothing else is read of them."""

from __future__ import annotations

import json
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import Runs
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from lever_pipe.__main__ import main
from lever_pipe.base.errors import CheckpointError
from lever_pipe.base.model_folders import load_strictly, problems_of
from lever_pipe.base.storage import digest
from lever_pipe.commands.convert_tool import convert

INDEX = "pytorch_model.bin.index.json"
TENSORS = {
    "a.weight": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "b.weight": torch.arange(4, dtype=torch.bfloat16).reshape(2, 2).T,
    "c.ids": torch.arange(3),
    "d.half": torch.ones(2, dtype=torch.float16),
    "e.empty": torch.zeros(0, 3),
    "f.scalar": torch.tensor(3.5),
}


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def save_shards(folder: Path, *shards: dict[str, Tensor]) -> None:
    weight_map = {}
    for number, tensors in enumerate(shards, 1):
        name = f"pytorch_model-{number:05}-of-{len(shards):05}.bin"
        torch.save(tensors, folder / name)
        weight_map |= dict.fromkeys(tensors, name)
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))


def test_a_single_file_comes_out_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(OrderedDict(TENSORS), tmp_path / "pytorch_model.bin")
    assert main(["convert", str(tmp_path)]) == 0
    written = tmp_path / "model.safetensors"
    same(load_file(written), TENSORS)
    assert listing(tmp_path) == ["model.safetensors", "pytorch_model.bin"]
    assert capsys.readouterr().out == f"sha256 {digest(written)}  {written}\n"


def test_shards_keep_their_places_and_get_an_index(tmp_path: Path) -> None:
    names = sorted(TENSORS)
    shards = [{name: TENSORS[name] for name in part} for part in (names[:2], names[2:])]
    save_shards(tmp_path, *shards)
    written = convert(tmp_path)
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert [path.name for path in written] == [*files, "model.safetensors.index.json"]
    for path, tensors in zip(written, shards, strict=False):
        same(load_file(path), tensors)
    index = json.loads(written[-1].read_text())
    assert index["weight_map"] == {name: files[name > "b.weight"] for name in names}
    assert index["metadata"] == {"total_size": sum(tensor.nbytes for tensor in TENSORS.values())}


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("sharded", [True, False])
def test_a_model_loads_strictly_and_computes_the_same(tmp_path: Path, ties: bool, sharded: bool) -> None:
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=ties,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    config.save_pretrained(tmp_path)
    state = dict(model.state_dict())
    if sharded:
        save_shards(tmp_path, state)
    else:
        torch.save(state, tmp_path / "pytorch_model.bin")
    convert(tmp_path)
    assert problems_of(tmp_path, files=("config.json",)) == []
    loaded = load_strictly(LlamaForCausalLM, tmp_path, "model").eval()
    same(dict(loaded.state_dict()), state)
    ids = torch.arange(8)[None]
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_memory_that_two_tensors_share_is_written_under_each_name(tmp_path: Path) -> None:
    whole = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    tensors = {"lm_head.weight": whole, "embed.weight": whole, "part": whole[1:], "turned": whole.T}
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    same(load_file(*convert(tmp_path)), tensors)


def refusal(folder: Path) -> str:
    before = listing(folder)
    with pytest.raises(CheckpointError) as problem:
        convert(folder)
    assert listing(folder) == before
    assert problem.value.found
    assert problem.value.do.endswith(".")
    return str(problem.value)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_with_code_is_refused_and_not_run(tmp_path: Path, zipped: bool) -> None:
    trap = tmp_path / "trap"
    torch.save(
        {"w": torch.ones(1), "x": Runs(trap)},
        tmp_path / "pytorch_model.bin",
        _use_new_zipfile_serialization=zipped,
    )
    assert "objects that would run code; it was not run" in refusal(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Runs(trap)))
    assert "it was not run" in refusal(tmp_path)
    assert not trap.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"state_dict": {"w": torch.ones(1)}, "step": 3}, "'state_dict': dict, 'step': int"),
        ([torch.ones(1)], "found a list"),
        ({}, "found no tensor"),
        ({1: torch.ones(1)}, "1: Tensor"),
        ({"w": torch.eye(2).to_sparse()}, "torch.sparse_coo"),
        ({"w": torch.ones(2, device="meta")}, "on meta"),
        (b"version https://git-lfs.github.com/spec/v1\n", "expected tensors that torch.load(weights_only=True) reads"),
        (b"PK\x03\x04 half an archive", "expected tensors that torch.load(weights_only=True) reads"),
    ],
)
def test_other_contents_are_refused_by_name(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "pytorch_model.bin"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    assert message in refusal(tmp_path)


@pytest.mark.parametrize(
    "name", ["model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json"]
)
def test_safetensors_that_are_there_stay(tmp_path: Path, name: str) -> None:
    torch.save(TENSORS, tmp_path / "pytorch_model.bin")
    (tmp_path / name).write_bytes(b"mine")
    assert f"found {name}" in refusal(tmp_path)


def test_a_folder_without_bin_weights(tmp_path: Path) -> None:
    assert "found neither" in refusal(tmp_path)
    (tmp_path / "training_args.bin").touch()
    assert "found training_args.bin" in refusal(tmp_path)
    with pytest.raises(CheckpointError, match="no such folder"):
        convert(tmp_path / "absent")


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("[]", "expected a weight_map"),
        ('{"weight_map": {}}', "expected a weight_map"),
        ('{"weight_map": {"a": "pytorch_model-9.bin"}}', "expected a weight_map"),
        ('{"weight_map": {"a": "../pytorch_model.bin"}}', "expected a weight_map"),
        ('{"weight_map": {"a": ["x"]}}', "expected a weight_map"),
        ('{"weight_map": {"a": "pytorch_model-00001-of-00001.bin"}}', "other ones: b"),
    ],
)
def test_an_index_of_something_else_is_refused(tmp_path: Path, index: str, message: str) -> None:
    save_shards(tmp_path, {"a": torch.ones(1), "b": torch.ones(1)})
    (tmp_path / INDEX).write_text(index)
    assert message in refusal(tmp_path)


def test_a_second_shard_that_fails_leaves_nothing_of_the_first(tmp_path: Path) -> None:
    save_shards(tmp_path, {"a": torch.ones(1)}, {"b": torch.ones(1)})
    torch.save({"b": 3}, tmp_path / "pytorch_model-00002-of-00002.bin")
    assert "'b': int" in refusal(tmp_path)


def test_a_killed_conversion_leaves_nothing_that_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(TENSORS, tmp_path / "pytorch_model.bin")

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            convert(tmp_path)
    assert listing(tmp_path) == ["pytorch_model.bin"]
    assert convert(tmp_path)
