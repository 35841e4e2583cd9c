"""`lever-pipe convert`: write safetensors next to the `.bin` weights of a model folder.

A `.bin` file is a pickle. Only this module opens pickles (`import_checkpoint` uses it too), by
`torch.load(weights_only=True)`, which builds tensors and plain containers and refuses every other object. No stage
opens one, so that code in a file can never run unnoticed.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import click
import torch
from safetensors.torch import save_file
from torch import Tensor

from lever_pipe.base import atomic, storage
from lever_pipe.base.errors import CheckpointError, first, shortened
from lever_pipe.base.model_folders import INDEX

STEM = "pytorch_model"
BIN_INDEX = f"{STEM}.bin.index.json"
REFUSED_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")
"""Error text of `torch.load` for an object that it refuses."""
BROKEN = (
    "The file is broken, a git-lfs pointer, or contains objects that would run code; it was not run. Take another "
    "copy; if you trust it, save its tensors alone, as torch.save({'state_dict': loaded['state_dict']}, 'tensors.pt')."
)

ABOUT = """
Reads pytorch_model.bin, or the shards in pytorch_model.bin.index.json, one at a time, and writes model.safetensors, or
shards with their index, to the same folder. Names, values and types of the tensors do not change. The .bin files stay;
remove them when the folder loads.
"""


@click.command(help=ABOUT)
@click.argument("folder", type=click.Path(path_type=Path))
def command(folder: Path) -> None:
    """Convert one folder and print the digest of each file made."""
    for path in convert(folder):
        sys.stdout.write(f"sha256 {storage.digest(path)}  {path}\n")


def convert(folder: Path) -> list[Path]:
    """Write the weights of a folder as safetensors and return the files, all of them or none."""
    if present := [path.name for path in sorted(folder.glob("*.safetensors*"))]:
        do = "Use them, or remove them if they are broken."
        refuse(f"{folder}: expected a folder without safetensors", first(present), do)
    index = _index(folder)
    placed: dict[str, str] = {}  # file by tensor
    n_bytes = 0
    with atomic.folder_in(folder) as temporary, atomic.blamed_on(folder / INDEX, temporary):
        atomic.sweep(temporary)
        for name in sorted(set(index.values())) or [f"{STEM}.bin"]:
            tensors = _tensors(folder / name)
            if index and (differing := sorted({tensor for tensor in index if index[tensor] == name} ^ set(tensors))):
                refuse(
                    f"{folder / name}: expected the tensors that {BIN_INDEX} names",
                    f"other ones: {first(differing)}",
                    "Download file and index again.",
                )
            written = temporary / f"model{name.removeprefix(STEM).removesuffix('.bin')}.safetensors"
            # Safetensors stores no memory twice: tensors that share it are copied for each name.
            copies = {n: tensor.clone(memory_format=torch.contiguous_format) for n, tensor in tensors.items()}
            save_file(copies, written, metadata={"format": "pt"})
            # On disk before it gets its final name.
            with written.open("rb") as handle:
                os.fsync(handle.fileno())
            placed |= dict.fromkeys(copies, written.name)
            n_bytes += sum(tensor.nbytes for tensor in copies.values())
        names = sorted(set(placed.values()))
        if index:
            values = {"metadata": {"total_size": n_bytes}, "weight_map": dict(sorted(placed.items()))}
            storage.write_json(temporary / INDEX, values)
            names.append(INDEX)  # last: without it, readers ignore the shards of an interrupted conversion
        for name in names:
            atomic.place(temporary / name, folder / name)
    return [folder / name for name in names]


def _index(folder: Path) -> dict[str, str]:
    """Return the file of each tensor in the index of shards; an empty mapping for a single file."""
    path = folder / BIN_INDEX
    if not path.is_file():
        if not (folder / f"{STEM}.bin").is_file():
            others = first(sorted(path.name for path in folder.glob("*.bin")))
            refuse(
                f"{folder}: expected {STEM}.bin, or shards with {BIN_INDEX}",
                others or ("neither" if folder.is_dir() else "no such folder"),
                "Name a model folder with .bin weights; one with safetensors needs no conversion.",
            )
        return {}
    index = storage.read_json(path)
    names = index.get("weight_map") if isinstance(index, dict) else None
    files = {file.name for file in folder.glob(f"{STEM}*.bin")}
    if not isinstance(names, dict) or not names or not all(name in files for name in map(str, names.values())):
        expected = f"{path}: expected a weight_map of files {STEM}*.bin in the same folder"
        refuse(expected, "none, or files that are absent or elsewhere", "Download the folder whole.")
    return names


def load_restricted(path: Path) -> Any:
    """Return the content of a file: tensors, numbers, texts and plain containers of them."""
    if not path.exists():
        refuse(f"{path}: expected weights", "no such file", "Name one.")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - torch raises many classes for broken files
        message = " ".join(str(error).split())
        match = REFUSED_GLOBAL.search(message)
        refuse(
            f"{path}: expected tensors that torch.load(weights_only=True) reads",
            f"the object {match[1]}" if match else f"{type(error).__name__}: {shortened(message)}",
            BROKEN,
        )


def _tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a `.bin` file, which must not contain anything else."""
    content = load_restricted(path)
    if wrong := list(no_tensors(content)):
        refuse(
            f"{path}: expected tensors by their names, and nothing else",
            first(wrong),
            "Take the weights that save_pretrained writes, not those of a training run or a quantized model.",
        )
    return {name: tensor.detach() for name, tensor in content.items()}


def no_tensors(content: Any) -> Iterator[str]:
    """Yield the entries that are not plain named tensors, or that safetensors cannot store."""
    if not isinstance(content, Mapping) or not content:
        yield f"a {type(content).__name__}" if not isinstance(content, Mapping) else "no tensor"
        return
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            yield f"{name!r}: {type(value).__name__}"
        elif value.layout != torch.strided or value.is_quantized or value.is_meta:
            yield f"{name!r}: {value.dtype} tensor of layout {value.layout} on {value.device}"


def refuse(expected: str, found: str, do: str) -> NoReturn:
    """Refuse a file or folder of weights."""
    raise CheckpointError(expected, found=found, do=do)
