"""Safetensors files: checkpoints, arrays, and what is told of a model folder from headers alone."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bad_input import NoOneReading, harmed, harmed_bytes, in_time, inputs, law_of, only_reading
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.base import model_folders, storage
from lever_pipe.base.checkpoints import load_tensors, save_tensors
from lever_pipe.runtime import plan

HEADER = {
    "__metadata__": {"about": '{"epoch": 3, "stage": "a"}'},
    "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
    "b": {"dtype": "I64", "shape": [], "data_offsets": [16, 24]},
}
DATA = np.arange(4, dtype="<f4").tobytes() + np.int64(7).tobytes()
SIZES = {"F32": 4, "F64": 8, "I64": 8, "I32": 4, "U8": 1}


def file_of(header: bytes, data: bytes = DATA, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def strict(content: bytes) -> dict[str, tuple[str, list[int], bytes]] | None:
    """Return name -> dtype, shape and bytes by the format's own words, or None where it forbids the file."""
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 + length:
        return None
    try:
        header = only_reading(content[8 : 8 + length])
    except NoOneReading:
        return None
    data, end, found = content[8 + length :], 0, {}
    try:
        entries = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
        entries.sort(key=lambda item: [*map(int, item[1]["data_offsets"])])
        sizes = {name: SIZES[entry["dtype"]] for name, entry in entries}
        counts = [number for _, entry in entries for number in [*entry["shape"], *entry["data_offsets"]]]
    except (AttributeError, LookupError, TypeError, ValueError):
        return None
    if any(type(number) is not int or number < 0 for number in counts) or any(
        len(entry["data_offsets"]) != 2 for _, entry in entries
    ):
        return None
    for name, entry in entries:
        begin, stop = entry["data_offsets"]
        if begin != end or stop - begin != math.prod(entry["shape"]) * sizes[name]:
            return None
        end, found[name] = stop, (entry["dtype"], entry["shape"], data[begin:stop])
    return found if end == len(data) else None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tensors")


files = st.one_of(
    harmed(HEADER).map(file_of),
    harmed_bytes(file_of(json.dumps(HEADER).encode())),
    st.tuples(st.just(json.dumps(HEADER).encode()), st.just(DATA), st.integers(0, 2**64 - 1)).map(
        lambda p: file_of(*p)
    ),
)


def bits(array: Any) -> tuple[list[int], bytes]:
    return list(array.shape), np.asarray(array).tobytes()


@inputs
@given(content=files)
def test_tensors_are_what_the_file_holds(folder: Path, content: bytes) -> None:
    path = folder / "checkpoint.safetensors"
    path.write_bytes(content)
    taken, found = law_of("load_tensors", lambda: load_tensors(path), names=str(path))
    truth = strict(content)
    if taken:
        assert truth is not None
        assert {name: bits(tensor.numpy()) for name, tensor in found[0].items()} == {
            name: (shape, data) for name, (_, shape, data) in truth.items()
        }
    taken, arrays = law_of("read_arrays", lambda: storage.read_arrays(path), names=str(path))
    if taken:
        assert truth is not None
        assert {name: bits(array) for name, array in arrays.items()} == {
            name: (shape, data) for name, (_, shape, data) in truth.items()
        }


@inputs
@given(about=harmed({"epoch": 3, "stage": "a", "share": 0.5}))
def test_a_checkpoints_own_words_are_texts_and_numbers(folder: Path, about: bytes) -> None:
    path = folder / "about.safetensors"
    try:
        text = about.decode()
    except UnicodeDecodeError:
        return
    path.write_bytes(file_of(json.dumps({**HEADER, "__metadata__": {"about": text}}).encode()))
    taken, found = law_of("about", lambda: load_tensors(path), names=str(path))
    if taken:
        assert found[1] == only_reading(about)
        assert {type(value) for value in found[1].values()} <= {int, float, str}


@inputs
@given(content=files)
def test_a_model_folder_is_whole_only_if_it_loads(folder: Path, content: bytes) -> None:
    path = folder / "model" / "model.safetensors"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    with in_time():
        faults = model_folders.faults_of(path.parent, files=())
        n_parameters = plan.parameters_of.__wrapped__(str(path.parent))
    truth = strict(content) if not faults else None
    if truth is not None:
        assert n_parameters == sum(math.prod(shape) for _, shape, _ in truth.values())
    if faults:
        assert all(isinstance(text, str) and "model.safetensors" in text for text in faults)


@inputs
@given(content=harmed({"weight_map": {"a": "model-1.safetensors"}}))
def test_an_index_names_files_or_is_a_fault(folder: Path, content: bytes) -> None:
    place = folder / "sharded"
    place.mkdir(exist_ok=True)
    (place / "model-1.safetensors").write_bytes(file_of(json.dumps(HEADER).encode()))
    (place / model_folders.INDEX).write_bytes(content)
    with in_time():
        faults = model_folders.faults_of(place, files=())
    try:
        named = set(only_reading(content)["weight_map"].values())
    except (NoOneReading, LookupError, TypeError, AttributeError):
        named = None
    if not faults:
        assert named == {"model-1.safetensors"}


def test_a_sound_file_is_taken(folder: Path) -> None:
    path = folder / "sound.safetensors"
    save_tensors(path, {"a": torch.ones(2)}, about={"epoch": 3})
    assert load_tensors(path)[1] == {"epoch": 3}
    path.write_bytes(file_of(json.dumps(HEADER).encode()))
    assert load_tensors(path)[1] == {"epoch": 3, "stage": "a"}
    assert storage.read_arrays(path)["b"] == 7
    assert strict(path.read_bytes()) is not None
