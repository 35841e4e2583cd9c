"""`python -m lever_pipe import_checkpoint`: a selector of the original's training as one of ours.

The pointer network of v2 and v3 comes in, told by the exact set of its tensors; their shapes tell the sizes. What no
tensor tells (attention heads, dropout, temperature) comes from the configuration and is written down as assumed.
Nothing is left out unsaid, and no missing tensor is made up: the original's own converters do both, and evaluate half a
network.

Source: Lever-Plus (published code), `models/v2`, `models/v3`
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from lever_pipe.base import atomic, storage
from lever_pipe.base.checkpoints import load_tensors, require_same_tensors
from lever_pipe.base.errors import CheckpointError, ConfigError
from lever_pipe.base.parsing import parse_model
from lever_pipe.base.sections import did_you_mean
from lever_pipe.commands.convert_tool import load_restricted, no_tensors
from lever_pipe.experiment.config import Preset, Selector
from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.lever.selector.network import build_selector
from lever_pipe.lever.training.embeddings import architecture_for
from lever_pipe.lever.training.state import save_selector
from lever_pipe.runtime.snakemake_adapter import CONFIG, configuration_of

SELECTOR, RECORD = "selector.safetensors", "import.json"
DICTS = ("state_dict", "model_state_dict")
PREFIXES = ("lever_lm.", "pointer_selector.")
TOWERS = ("img_model.", "sen_model.")
"""Before the names of CLIP's tensors, which a selector does not have."""
BUFFER = "position_ids"
"""The end of names of CLIP's buffers, which newer files leave out."""
FIRST_LAYER = {"cross_attn.": "cross_attn_layers.0.", "attn_norm.": "attn_norms.0."}
"""Names of files with one layer, and of converted ones."""
LAYER = re.compile(r"(?:cross_attn_layers|attn_norms)\.(\d+)\.")
OTHER_FILE = "Name a checkpoint of the original's training."
SHOWN = 5

UNTOLD = ("temperature", "dropout", "heads", "attention_dropout")
"""Fields of `selector` that no tensor tells."""
WHAT = "a pointer selector of v2 or v3"
SIZES = ("D", "H")
Shapes = Mapping[str, str]
"""Tensor -> its sizes: D of embeddings, H of the selector, or multiples; `3H` is three times H."""

PROJECTIONS = {"input_proj.weight": "H D", "query_proj.weight": "H H", "cand_proj.weight": "H H"}
LAYER_SHAPES = {
    "cross_attn_layers.{l}.in_proj_weight": "3H H",
    "cross_attn_layers.{l}.in_proj_bias": "3H",
    "cross_attn_layers.{l}.out_proj.weight": "H H",
    "cross_attn_layers.{l}.out_proj.bias": "H",
    "attn_norms.{l}.weight": "H",
    "attn_norms.{l}.bias": "H",
}


class Recognised(NamedTuple):
    """The tensors of a file, under our names, and what they are."""

    tensors: dict[str, Tensor]
    mapped: dict[str, str]
    """Name in the file -> name here."""
    towers: dict[str, Tensor]
    """CLIP's, by their names in CLIP's own folder."""
    embedding: int  # D
    selector: dict[str, Any]
    """Fields of `selector` that the tensors tell."""


def main(words: Sequence[str]) -> int:
    """Import one checkpoint, print what it is, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lever_pipe import_checkpoint", description=__doc__)
    parser.add_argument("source", type=Path, help="a .ckpt or .pt file of the original")
    parser.add_argument("out", type=Path, help=f"a folder to be made, for {SELECTOR} and {RECORD}")
    parser.add_argument(
        "--preset", default="", help="where what no tensor tells is taken from; default: the first arm's"
    )
    parser.add_argument(
        "--configfile", type=Path, nargs="+", default=[], metavar="FILE", help=f"laid over {CONFIG}, as for a run"
    )
    options = parser.parse_args(words[1:])
    paths = [path for path in (CONFIG, *options.configfile) if path != CONFIG or path.exists()]
    experiment = parse_experiment(configuration_of(paths), source=" + ".join(map(str, paths)))
    record = import_checkpoint(options.source, options.out, experiment, options.preset)
    sys.stdout.write(f"{options.out / SELECTOR}: {record['is']}, {record['parameters']:,} parameters\n")
    return 0


def import_checkpoint(source: Path, out: Path, experiment: Experiment, preset: str = "") -> dict[str, Any]:
    """Write the selector of a file into a folder, with the record of the import, which is returned.

    Args:
        source: what the original's training or its converters wrote.
        out: a folder that is not there yet.
        experiment: its preset tells what no tensor does, its encoder's folder what CLIP's tensors must be.
        preset: key of `presets`; empty for the first arm's.

    Raises:
        CheckpointError: objects that are no tensors, another network, or tensors missing, unknown, doubled, of another
            shape or type or not finite; CLIP's tensors that differ from the encoder's; or `out` exists.
        ConfigError: no such preset, or this selector is none of the configuration's.
    """
    if out.exists():
        _refuse(f"{out}: expected no folder yet", "one", "Name another, or remove it.")
    settings = _preset(experiment, preset)
    found, stated, ignored = pick_tensors(source, load_restricted(source))
    recognised = recognise(source, found)
    _require_stock(source, recognised.towers, Path(experiment.encoder.model))
    assumed = {name: getattr(settings.selector, name) for name in UNTOLD}
    told = {"inputs": "fused"} | recognised.selector
    selector = parse_model(Selector, assumed | told, source=f"{source}: its selector")
    architecture = architecture_for(selector, recognised.embedding)
    module = build_selector(architecture)
    require_same_tensors(source, recognised.tensors, module.state_dict())
    module.load_state_dict(recognised.tensors, strict=True)
    record = {
        "source": source.name,
        "sha256": storage.digest(source),
        "is": WHAT,
        "parameters": sum(tensor.numel() for tensor in recognised.tensors.values()),
        "selector": selector.model_dump(),
        "mapped": recognised.mapped,
        "ignored": sorted([*ignored, *(f"CLIP's {name}" for name in recognised.towers)]),
        "stated": stated,
        "assumed": assumed,
    }
    with atomic.folder_in(out.parent) as temporary:
        save_selector(temporary / SELECTOR, module, stage="imported", epoch=0)
        storage.write_json(temporary / RECORD, record)
        atomic.place(temporary, out)
    return record


def pick_tensors(source: Path, found: Any) -> tuple[dict[str, Tensor], dict[str, Any], list[str]]:
    """Return the one dictionary of tensors in what a file holds, what it says beside it, and what is ignored of it.

    Raises:
        CheckpointError: no dictionary of tensors, or two different ones.
    """
    if not isinstance(found, dict):
        _refuse(f"{source}: expected a dictionary", type(found).__name__, OTHER_FILE)
    if not any(no_tensors(found)):
        return dict(found), {}, []
    held = [name for name in DICTS if name in found]
    wrong = [f"{name}: {fault}" for name in held for fault in no_tensors(found[name])]
    if not held or wrong:
        _refuse(
            f"{source}: expected plain tensors by name, alone or as {' or '.join(DICTS)}",
            _listed(wrong) if wrong else f"the keys {_listed(map(str, found)) or 'of nothing'}",
            OTHER_FILE,
        )
    states = [_stripped(source, found[name]) for name in held]
    if len(states) > 1 and not _equal(*states):
        _refuse(f"{source}: expected one network", " and ".join(held) + ", which differ", "Take one of them out.")
    beside = {name: value for name, value in found.items() if name not in DICTS}
    stated = {str(name): value for name, value in beside.items() if _is_plain(value)}
    return states[0], stated, sorted(str(name) for name in beside if str(name) not in stated)


def recognise(source: Path, found: Mapping[str, Tensor]) -> Recognised:
    """Return what tensors are and what they are called here.

    Args:
        source: of the message.
        found: by the original's names, with or without prefixes.

    Raises:
        CheckpointError: another network than ours, or tensors missing, unknown or of another shape, type or value.
    """
    tensors = _stripped(source, found)
    towers = {name: tensors.pop(name) for name in list(tensors) if name.startswith(TOWERS)}
    theirs = {_newer(name): name for name in tensors}
    if len(theirs) < len(tensors):
        twice = next(name for name in tensors if theirs[_newer(name)] != name)
        said = f"'{theirs[_newer(twice)]}' under its older name and its newer one"
        _refuse(f"{source}: expected one first layer", said, "Take one of them out.")
    named = {name: tensors[old] for name, old in theirs.items()}
    n_layers = _layers_of(source, named)
    shapes = shapes_of(max(n_layers, 1))
    _require_names(source, set(named), set(shapes))
    sizes = _sizes(source, named, shapes)
    return Recognised(
        tensors={name: torch.clone(tensor).contiguous() for name, tensor in sorted(named.items())},
        mapped={theirs[name]: name for name in sorted(named)},
        towers={name.partition(".")[2]: tensor for name, tensor in towers.items() if not name.endswith(BUFFER)},
        embedding=sizes["D"],
        selector={"head": "static", "width": sizes["H"], "layers": n_layers},
    )


def shapes_of(n_layers: int) -> dict[str, str]:
    """Return the tensors of a selector with so many layers of attention, under the original's newer names."""
    return PROJECTIONS | {name.format(l=at): shape for at in range(n_layers) for name, shape in LAYER_SHAPES.items()}


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | bool) or (isinstance(value, float) and math.isfinite(value))


def _equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def _stripped(source: Path, found: Mapping[Any, Tensor]) -> dict[str, Tensor]:
    """Return tensors without the prefixes of Lightning's module and of the selector in it, each at most once."""
    stripped: dict[str, Tensor] = {}
    for name, tensor in found.items():
        short = str(name)
        for prefix in PREFIXES:
            short = short.removeprefix(prefix)
        if short in stripped:
            _refuse(f"{source}: expected one tensor {short}", "two, with and without prefix", "Take one of them out.")
        stripped[short] = tensor
    return stripped


def _newer(name: str) -> str:
    for old, new in FIRST_LAYER.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def _layers_of(source: Path, named: Mapping[str, Tensor]) -> int:
    numbers = {int(match[1]) for name in named if (match := LAYER.match(name))}
    if numbers != set(range(len(numbers))):
        found = f"layers {_listed(map(str, sorted(numbers)))}"
        _refuse(f"{source}: expected layers that count from 0", found, "Take another copy; layers are missing.")
    return len(numbers)


def _require_names(source: Path, names: set[str], wanted: set[str]) -> None:
    missing, unknown = sorted(wanted - names), sorted(names - wanted)
    if missing or unknown:
        told = [f"missing {_listed(missing)}"] if missing else []
        told += [f"unknown {_listed(unknown)}"] if unknown else []
        do = "Take a file that holds the whole selector and no other network; nothing is made up."
        _refuse(f"{source}: expected {WHAT}", "; ".join(told), do)


def _sizes(source: Path, named: Mapping[str, Tensor], shapes: Shapes) -> dict[str, int]:
    """Return D and H from the shapes of the tensors that tell them; refuse every tensor that does not fit."""
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        found, symbols = named[name].shape, shape.split()
        for symbol, size in zip(symbols, found, strict=True) if len(found) == len(symbols) else ():
            if symbol in SIZES:
                sizes.setdefault(symbol, size)
    faults = list(_faults(named, shapes, sizes))
    if faults:
        _refuse(
            f"{source}: expected the tensors of {WHAT}",
            f"{'; '.join(faults[:SHOWN])} ({len(faults)})",
            "Take another copy; this one is broken.",
        )
    return sizes


def _faults(named: Mapping[str, Tensor], shapes: Shapes, sizes: Mapping[str, int]) -> Iterator[str]:
    for name, shape in shapes.items():
        tensor = named[name]
        try:
            wanted = [_size(symbol, sizes) for symbol in shape.split()]
        except KeyError as symbol:
            yield f"{name} has shape {list(tensor.shape)}, which leaves {symbol} open"
            continue
        if list(tensor.shape) != wanted:
            yield f"{name} has shape {list(tensor.shape)}, expected {wanted}"
        elif tensor.dtype != torch.float32:
            yield f"{name} is {tensor.dtype}, expected torch.float32"
        elif not bool(tensor.isfinite().all()):
            yield f"{name} is not finite"


def _size(symbol: str, sizes: Mapping[str, int]) -> int:
    letter = symbol[-1] if symbol[-1] in SIZES else ""
    return int(symbol.removesuffix(letter) or 1) * (sizes[letter] if letter else 1)


def _require_stock(source: Path, towers: Mapping[str, Tensor], folder: Path) -> None:
    """Refuse CLIP's tensors that are not those of the encoder's folder: then the selector's inputs were others."""
    if not towers:
        return
    stock: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        stock |= load_tensors(path)[0]
    unknown = sorted(towers.keys() - stock.keys())
    if unknown:
        _refuse(
            f"{source}: expected CLIP's tensors as in {folder} (encoder.model)",
            f"{_listed(unknown)}, which that folder lacks",
            "Name the encoder that it was trained with, or save the selector's tensors alone.",
        )
    tuned = sorted(n for n, tensor in towers.items() if not torch.equal(tensor.float(), stock[n].float()))
    if tuned:
        _refuse(
            f"{source}: expected CLIP's tensors as in {folder} (encoder.model)",
            f"others: {_listed(tuned)} ({len(tuned)}), so that CLIP was trained along",
            "Name that CLIP as encoder.model; with another one the selector sees other inputs.",
        )


def _preset(experiment: Experiment, name: str) -> Preset:
    name = name or experiment.arms[0].preset
    if name not in experiment.presets:
        do = did_you_mean(name, experiment.presets, "Name one of them.")
        raise ConfigError(f"--preset: expected one of {', '.join(experiment.presets)}", found=f"'{name}'", do=do)
    return experiment.presets[name]


def _listed(names: Iterable[str]) -> str:
    shown = list(names)
    return ", ".join(shown[:SHOWN]) + (f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else "")


def _refuse(expected: str, found: str, do: str) -> NoReturn:
    raise CheckpointError(expected, found=found, do=do)
