"""`python -m lever_pipe import_checkpoint`: a selector of the original's training as one of ours.

A file is what its tensors are: the exact set of their names tells the kind, their shapes the sizes. What no tensor
tells (attention heads, dropout, temperature) comes from the configuration and is written down as assumed. Nothing is
left out unsaid, and no missing tensor is made up: the original's own converters do both, and evaluate half a network.

Source: Lever-Plus (published code), `models/v1`, `models/v2`, `models/v3`, `scripts/convert_v4_*`
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

UNTOLD, UNTOLD_OF_LAYERS = ("temperature", "dropout"), ("heads", "attention_dropout")
"""Fields of `selector` that no tensor tells."""
SIZES = ("D", "H", "R")
Shapes = Mapping[str, str]
"""Tensor -> its sizes: D of embeddings, H of the selector, R rows, or numbers; `3H` is three times H."""


class Kind(NamedTuple):
    """What one network of the original has, and what it is here."""

    is_what: str
    shapes: Shapes
    selector: Mapping[str, str]
    """Fields of `selector` that it is."""
    layered: bool = True
    """Whether it has the layers of attention, too."""
    renamed: Mapping[str, str] = {}
    changed: Mapping[str, Callable[[Tensor], Tensor]] = {}
    """What becomes of a tensor's values, where the same network holds them otherwise."""
    assumed: tuple[str, ...] = ()
    """What no tensor tells of its head."""


PROJECTIONS = {"input_proj.weight": "H D", "query_proj.weight": "H H", "cand_proj.weight": "H H"}
LAYER_SHAPES = {
    "cross_attn_layers.{l}.in_proj_weight": "3H H",
    "cross_attn_layers.{l}.in_proj_bias": "3H",
    "cross_attn_layers.{l}.out_proj.weight": "H H",
    "cross_attn_layers.{l}.out_proj.bias": "H",
    "attn_norms.{l}.weight": "H",
    "attn_norms.{l}.bias": "H",
}
GRU = PROJECTIONS | {
    "decoder_gru.weight_ih": "3H H",
    "decoder_gru.weight_hh": "3H H",
    "decoder_gru.bias_ih": "3H",
    "decoder_gru.bias_hh": "3H",
    "step_emb.weight": "R H",
}
ATTENTION = {"attn_Wq.weight": "H H", "attn_Wq.bias": "H", "attn_Wc.weight": "H H", "attn_v.weight": "1 H"}
PERCEPTRON = {"0.weight": "H D", "1.weight": "H", "4.weight": "H H", "5.weight": "H"}
PERCEPTRONS = {
    f"{side}.{name}": shape
    for side in ("query_proj", "cand_proj")
    for part, sizes in PERCEPTRON.items()
    for name, shape in ((part, sizes), (part.replace("weight", "bias"), "H"))
}
KINDS: Mapping[str, Kind] = {
    "v1": Kind(
        "v1, the bi-encoder",
        PERCEPTRONS | {"query_update_weight": ""},
        {"network": "bi_encoder", "head": "blend"},
        layered=False,
    ),
    "static": Kind("v2 or v3", PROJECTIONS, {"head": "static"}),
    "gated": Kind(
        "V4-1, with a gate",
        PROJECTIONS | {"query_update_gate.weight": "H 2H", "query_update_gate.bias": "H"},
        {"head": "gated"},
        renamed={"query_update_gate.weight": "gate.weight", "query_update_gate.bias": "gate.bias"},
    ),
    "gru": Kind("V4-2, with a GRU", GRU, {"head": "gru"}),
    "gru_mmr": Kind(
        "V4-3, with a GRU and a penalty",
        GRU | {"div_lambda": "R"},
        {"head": "gru_mmr"},
        changed={"div_lambda": lambda steps: steps[:2][-1]},
        assumed=("the largest cosine with a pick counts, not the mean; the second pick's penalty serves all",),
    ),
    "additive": Kind("V4-5, additive", GRU | ATTENTION, {"head": "additive"}),
    "bilinear": Kind(
        "V4-5, bilinear",
        GRU | {"bilinear.weight": "1 H H"},
        {"head": "bilinear"},
        changed={"bilinear.weight": lambda weight: weight[0].T},
    ),
    "stop": Kind(
        "V4-10, which stops",
        GRU | {"stop_token": "1 H"},
        {"head": "stop"},
        assumed=("the GRU moves the state, not a fixed share",),
    ),
}
"""By name; the one table of what the original's tensors are called there and here."""
REFUSED = {
    "lm_model.": "v0, a language model over train ids",
    "lora_": "LoRA adapters, which mean nothing without their base and settings",
    "cand_encoder.": "V4-4, with an encoder of the candidate set",
    "topic_prototypes": "V4-6, with topics",
    "query_topic_head.": "V4-6, with topics",
    "cover_lambda": "V4-6, with topics",
    "dpp_": "V4-7, with determinants",
    "slot_": "V4-8, with slots",
    "refine_": "V4-9, in two stages",
}
"""Part of a tensor's name -> the network that has it and is none of ours."""
ROWS_OF_LOST_HEAD = 8
"""Step embeddings of V4-6 and V4-7, in place of 2: with a GRU alone, their own tensors got lost in conversion."""


class Recognised(NamedTuple):
    """The tensors of a file, under our names, and what they are."""

    kind: str
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
    recognised = recognise(source, found, [*stated, *ignored])
    _require_stock(source, recognised.towers, Path(experiment.encoder.model))
    of = KINDS[recognised.kind]
    assumed = {name: getattr(settings.selector, name) for name in (*UNTOLD, *(UNTOLD_OF_LAYERS if of.layered else ()))}
    told = {"inputs": "fused"} | recognised.selector
    selector = parse_model(Selector, assumed | told, source=f"{source}: its selector")
    architecture = architecture_for(selector, recognised.embedding)
    module = build_selector(architecture)
    require_same_tensors(source, recognised.tensors, module.state_dict())
    module.load_state_dict(recognised.tensors, strict=True)
    record = {
        "source": source.name,
        "sha256": storage.digest(source),
        "kind": recognised.kind,
        "is": of.is_what,
        "parameters": sum(tensor.numel() for tensor in recognised.tensors.values()),
        "selector": selector.model_dump(),
        "mapped": recognised.mapped,
        "ignored": sorted([*ignored, *(f"CLIP's {name}" for name in recognised.towers)]),
        "stated": stated,
        "assumed": {**assumed, "head_details": list(of.assumed)},
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


def recognise(source: Path, found: Mapping[str, Tensor], beside: Iterable[str]) -> Recognised:
    """Return what tensors are and what they are called here.

    Args:
        source: of the message.
        found: by the original's names, with or without prefixes.
        beside: names of what the file holds beside the tensors.

    Raises:
        CheckpointError: another network than ours, or tensors missing, unknown or of another shape, type or value.
    """
    tensors = _stripped(source, found)
    for name in tensors:
        for part, whose in REFUSED.items():
            if part in name:
                _refuse(f"{source}: expected {_kinds()}", f"'{name}' of {whose}", "Import another one.")
    towers = {name: tensors.pop(name) for name in list(tensors) if name.startswith(TOWERS)}
    theirs = {_newer(name): name for name in tensors}
    if len(theirs) < len(tensors):
        twice = next(name for name in tensors if theirs[_newer(name)] != name)
        said = f"'{theirs[_newer(twice)]}' under its older name and its newer one"
        _refuse(f"{source}: expected one first layer", said, "Take one of them out.")
    named = {name: tensors[old] for name, old in theirs.items()}
    n_layers = _layers_of(source, named)
    kind = _kind_of(source, set(named), n_layers)
    shapes = shapes_of(kind, n_layers)
    sizes = _sizes(source, kind, named, shapes)
    if kind == "gru" and (sizes.get("R") == ROWS_OF_LOST_HEAD or any(name.startswith("dpp_") for name in beside)):
        _refuse(
            f"{source}: expected {_kinds()}",
            f"a GRU with {sizes['R']} step embeddings and no tensor of V4-6 or V4-7, whose converters drop them",
            "Import the file from before its conversion; what it lost is not here.",
        )
    of = KINDS[kind]
    fields: dict[str, Any] = {**of.selector, "width": sizes["H"]}
    if of.layered:
        fields["layers"] = n_layers
    if "R" in sizes:
        fields["steps"] = sizes["R"]
    ours = {name: of.renamed.get(name, name) for name in shapes}
    return Recognised(
        kind=kind,
        tensors={
            ours[name]: of.changed.get(name, torch.clone)(tensor).contiguous() for name, tensor in sorted(named.items())
        },
        mapped={theirs[name]: ours[name] for name in sorted(named)},
        towers={name.partition(".")[2]: tensor for name, tensor in towers.items() if not name.endswith(BUFFER)},
        embedding=sizes["D"],
        selector=fields,
    )


def shapes_of(kind: str, n_layers: int) -> dict[str, str]:
    """Return the tensors of a kind with so many layers of attention, under the original's newer names."""
    of = KINDS[kind]
    layers = range(n_layers if of.layered else 0)
    return {**of.shapes, **{name.format(l=at): shape for at in layers for name, shape in LAYER_SHAPES.items()}}


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


def _kind_of(source: Path, names: set[str], n_layers: int) -> str:
    """Return the kind that has exactly these tensors, or tell what keeps the nearest one from being it."""
    differing = {kind: names ^ shapes_of(kind, max(n_layers, 1)).keys() for kind in KINDS}
    kind = min(differing, key=lambda each: len(differing[each]))
    missing, unknown = sorted(differing[kind] - names), sorted(differing[kind] & names)
    if missing or unknown:
        told = [f"missing {_listed(missing)}"] if missing else []
        told += [f"unknown {_listed(unknown)}"] if unknown else []
        _refuse(
            f"{source}: expected {_kinds()}",
            f"what is nearest to {KINDS[kind].is_what}, but {'; '.join(told)}",
            "Take a file that holds the whole selector; nothing is made up.",
        )
    return kind


def _sizes(source: Path, kind: str, named: Mapping[str, Tensor], shapes: Shapes) -> dict[str, int]:
    """Return D, H and R from the shapes of the tensors that tell them; refuse every tensor that does not fit."""
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        found, symbols = named[name].shape, shape.split()
        for symbol, size in zip(symbols, found, strict=True) if len(found) == len(symbols) else ():
            if symbol in SIZES:
                sizes.setdefault(symbol, size)
    faults = list(_faults(named, shapes, sizes))
    if faults:
        _refuse(
            f"{source}: expected the tensors of {KINDS[kind].is_what}",
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


def _kinds() -> str:
    return "a selector of one kind: " + "; ".join(kind.is_what for kind in KINDS.values())


def _listed(names: Iterable[str]) -> str:
    shown = list(names)
    return ", ".join(shown[:SHOWN]) + (f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else "")


def _refuse(expected: str, found: str, do: str) -> NoReturn:
    raise CheckpointError(expected, found=found, do=do)
