"""`lever-pipe convert`: write safetensors next to the `.bin` weights of a model folder, or a folder from a GGUF file.

A `.bin` file is a pickle. Only this module opens pickles (`import_checkpoint` uses it too), by
`torch.load(weights_only=True)`, which builds tensors and plain containers and refuses every other object. No stage
opens one, so that code in a file can never run unnoticed.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors.torch import save_file
from torch import Tensor

from lever_pipe.base import atomic, storage
from lever_pipe.base.errors import CheckpointError, ConfigError, first, shortened
from lever_pipe.base.model_folders import INDEX, readable, require_loaded

STEM = "pytorch_model"
BIN_INDEX = f"{STEM}.bin.index.json"
ROPE_FACTORS, ROPE_SCALES = "rope_freqs.weight", re.compile(r"\.rope\.(?:scaling\.|scale_linear$)")
REFUSED_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")
"""Error text of `torch.load` for an object that it refuses."""
BROKEN = (
    "The file is broken, a git-lfs pointer, or contains objects that would run code; it was not run. Take another "
    "copy; if you trust it, save its tensors alone, as torch.save({'state_dict': loaded['state_dict']}, 'tensors.pt')."
)

ABOUT = """
Reads pytorch_model.bin, or the shards in pytorch_model.bin.index.json, one at a time, and writes model.safetensors, or
shards with their index, to the same folder. Names, values and types of the tensors do not change. The .bin files stay;
remove them when the folder loads. From a .gguf file it makes a folder: weights in float32, which represents
quantized values exactly, settings, tokenizer and chat template.
"""


def main(words: Sequence[str]) -> int:
    """Convert one folder or file, print the digest of each file made, and return the exit status."""
    parser = argparse.ArgumentParser(prog="lever-pipe convert", description=ABOUT)
    parser.add_argument("source", type=Path, help="a model folder with .bin weights, or a .gguf file")
    parser.add_argument("--into", type=Path, help="for a .gguf file: the new folder")
    parser.add_argument("--chat-template", type=Path, help="for a .gguf file: a Jinja file that replaces its template")
    given = parser.parse_args(words[1:])
    if (given.source.suffix == ".gguf") != (given.into is not None) or (given.chat_template and not given.into):
        parser.error("--into FOLDER is for .gguf files, which need it; --chat-template FILE requires it")
    paths = convert_gguf(given.source, given.into, given.chat_template) if given.into else convert(given.source)
    for path in paths:
        sys.stdout.write(f"sha256 {storage.digest(path)}  {path}\n")
    return 0


def convert_gguf(path: Path, folder: Path, chat_template: Path | None = None) -> list[Path]:
    """Write the language model of a GGUF file as a model folder, atomically; return its files."""
    if missing := [name for name in ("accelerate", "gguf") if find_spec(name) is None]:
        remedy = "Install both: pip install 'lever-pipe[gguf]'."
        raise ConfigError(f"{path}: expected the libraries accelerate and gguf", found=f"no {missing[0]}", do=remedy)
    if folder.exists():
        refuse(f"{folder}: expected a folder to be made", "one that is there", "Name another, or remove it.")
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    template = None
    if chat_template is not None:
        with readable(chat_template, "chat template"):
            template = storage.text_in(chat_template.read_bytes())
    options: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True, "trust_remote_code": False}
    with readable(path, "GGUF file"):
        header = GGUFReader(path)
        _refuse_scaled_positions(path, header.fields, [tensor.name for tensor in header.tensors])
        tokenizer = AutoTokenizer.from_pretrained(path.parent, **options)
        options |= {"quantization_config": GgufConfig(dequantize=True), "dtype": torch.float32}
        model, info = AutoModelForCausalLM.from_pretrained(path.parent, output_loading_info=True, **options)
        _refuse_unplaced(path, model, header)
    require_loaded(path, model, info)

    def fill(target: Path) -> None:
        tokenizer.chat_template = template or tokenizer.chat_template
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)

    atomic.write_folder(folder, fill)
    return sorted(folder.iterdir())


def _refuse_unplaced(path: Path, model: Any, header: Any) -> None:
    """Refuse tensors that transformers ignores silently, such as biases of a llama."""
    from transformers import modeling_gguf_pytorch_utils as of_gguf

    family = header.fields["general.architecture"].contents()
    processor = of_gguf.TENSOR_PROCESSORS.get(family, of_gguf.TensorProcessor)()
    locations = of_gguf.get_gguf_hf_weights_map(model, processor)
    if unplaced := sorted({tensor.name for tensor in header.tensors} - locations.keys()):
        found = f"{first(unplaced)}, which it ignores"
        do = "Take the model's safetensors."
        refuse(f"{path}: expected only tensors that transformers loads into {type(model).__name__}", found, do)


def _refuse_scaled_positions(path: Path, fields: Mapping[str, Any], tensors: Sequence[str]) -> None:
    """Refuse scaled rotary positions, which transformers omits from most folders silently."""
    scales = {key: field.contents() for key, field in fields.items() if ROPE_SCALES.search(key)}
    is_off = any(key.endswith(".type") and value == "none" for key, value in scales.items())
    scaled = [name for name in tensors if name == ROPE_FACTORS] + ([] if is_off else sorted(scales))
    if scaled:
        do = "Take the model's safetensors: its config.json contains the scaling."
        refuse(f"{path}: expected rotary positions that are not scaled", scaled[0], do)


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
